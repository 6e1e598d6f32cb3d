"""PyTorch's side of pipeline.py: ResNet-34 over two processes with a core each that talk by gloo.

Both ends post their receives ahead and never wait for a send before its buffer is needed again, so that transfers overlap
with compute. The first process runs up to AHEAD microbatches forward before the first backward (1F1B), the second runs
forward, loss and backward of a microbatch at once. Each process steps its own half."""
import json
import os
import pathlib
import socket
import subprocess
import sys
from statistics import median

AHEAD = 3
SEED = 1
FIRST_BOUND, SECOND_BOUND = 1e-5, 2e-2  # relative; see train.py


class Peer:
    cuts = (5, 6, 7, 8)  # of 16 blocks behind the stem: the first ones in the first process

    def __init__(self, model, data, batch):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.ranks = []
        for rank in (0, 1):
            env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            self.ranks.append(subprocess.Popen(
                ["taskset", "-c", str(rank), sys.executable, "-W", "ignore", __file__, str(rank), str(model), str(data), str(batch)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env))

    def __enter__(self):
        return self

    def __exit__(self, *why):
        for process in self.ranks:
            process.stdin.close()
        for process in self.ranks:
            if process.wait(timeout=60) and not why[0]:
                raise SystemExit("PyTorch's side failed")
        return False

    def run(self, cut, microbatch, steps):
        """Losses and milliseconds of so many steps from the untrained model."""
        for process in self.ranks:
            process.stdin.write(f"{cut} {microbatch} {steps}\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.ranks]
        if not all(answers):
            raise SystemExit("PyTorch's side ended")
        return json.loads(answers[1]), json.loads(answers[0])

    def step_ms(self, cut, microbatch, steps):
        return median(self.run(cut, microbatch, steps)[1][1:])


def order(seed, n):
    """The samples of our first epoch (agent/sampler.c)."""
    word = (1 << 64) - 1

    def mix(x):
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & word
        x = (x ^ x >> 27) * 0x94d049bb133111eb & word
        return x ^ x >> 31

    step = 0x9e3779b97f4a7c15
    key = mix(seed + step & word)
    key = mix((key ^ 1) + 2 * step & word)
    key = mix(key + 3 * step & word)
    half = 1
    while half < 31 and 1 << 2 * half < n:
        half += 1
    mask = (1 << half) - 1

    def place(x):
        while True:
            left, right = x >> half, x & mask
            for r in range(1, 9):
                left, right = right, left ^ mix(key + r * step + mix(right) & word) >> 32 & mask
            x = left << half | right
            if x < n:
                return x

    return [place(i) for i in range(n)]


def compare(ours, theirs):
    for i, (a, b) in enumerate(zip(ours[:2], theirs[:2])):
        if not abs(a - b) <= (SECOND_BOUND if i else FIRST_BOUND) * max(abs(b), 1):
            raise SystemExit(f"step {i + 1}: our loss is {a:.7g}, PyTorch's {b:.7g}")


def halves(net, cut):
    import torch
    stem = [net.conv1, net.bn1, net.relu, net.maxpool]
    blocks = [b for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for b in layer]
    end = [net.avgpool, torch.nn.Flatten(), net.fc]
    return torch.nn.Sequential(*stem, *blocks[:cut]), torch.nn.Sequential(*blocks[cut:], *end)


def first_half(part, images, microbatch, optimizer):
    """A step of the first process."""
    import torch
    import torch.distributed as dist
    parts = images.split(microbatch)
    flying, sends = [], []

    def forward(x):
        y = part(x)
        gradient = torch.empty(y.shape)
        flying.append((y, gradient, dist.irecv(gradient, 1)))
        out = y.detach().contiguous()
        sends.append((dist.isend(out, 1), out))

    def backward():
        y, gradient, came = flying.pop(0)
        came.wait()
        y.backward(gradient)

    optimizer.zero_grad(set_to_none=True)
    for i, x in enumerate(parts):
        forward(x)
        if i + 1 >= AHEAD:
            backward()
    while flying:
        backward()
    for work, _ in sends:
        work.wait()
    optimizer.step()


def second_half(part, labels, microbatch, optimizer, border):
    """A step of the second process: its loss."""
    import torch
    import torch.distributed as dist
    parts = labels.split(microbatch)
    coming, sends, total = [], [], 0.0

    def expect(y):
        x = torch.empty(len(y), *border)
        coming.append((x, dist.irecv(x, 0)))

    optimizer.zero_grad(set_to_none=True)
    for y in parts[:AHEAD]:
        expect(y)
    for i, y in enumerate(parts):
        x, came = coming.pop(0)
        came.wait()
        x.requires_grad_()
        loss = torch.nn.functional.cross_entropy(part(x), y, reduction="sum") / len(labels)
        loss.backward()
        sends.append((dist.isend(x.grad, 0), x.grad))
        total += loss.item()
        if i + AHEAD < len(parts):
            expect(parts[i + AHEAD])
    for work, _ in sends:
        work.wait()
    optimizer.step()
    return total


def rank_main(rank, model, data, batch):
    import time

    import numpy
    import torch
    import torch.distributed as dist
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
    import torch_nets
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    images, labels = (torch.from_numpy(numpy.load(data / f"{name}.npy")) for name in "xy")
    samples = order(SEED, len(labels))
    for line in sys.stdin:
        cut, microbatch, steps = (int(v) for v in line.split())
        net = torch_nets.load(torch_nets.make("resnet34", 10, *images.shape[1:]), model).train()
        part = halves(net, cut)[rank]
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
        with torch.no_grad():
            border = list(halves(net.eval(), cut)[0](images[:1]).shape[1:])
        net.train()
        out = []
        for step in range(steps):
            now = samples[step * batch:(step + 1) * batch]
            dist.barrier()
            began = time.perf_counter()
            if rank == 0:
                first_half(part, images[now], microbatch, optimizer)
                dist.barrier()
                out.append(1000 * (time.perf_counter() - began))
            else:
                out.append(second_half(part, labels[now], microbatch, optimizer, border))
                dist.barrier()
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4]))
