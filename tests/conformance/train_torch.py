#!/usr/bin/python3
"""Training step by step against PyTorch: every step starts from PyTorch's own parameters, optimizer state and running
statistics, and train_peer (the trainer behind a pipe) computes it too.

Usage: train_torch.py PEER [--steps=N] [--full] [--list] [WORD...]      WORDs are names of cases, or parts of them

Checked at each step:
  loss        within 1e-5 of PyTorch's f32 (relative above 1)
  logits      NMSE against PyTorch in f64 <= 2.5 times that of PyTorch in f32 (at least 2e-14), in the median of the steps:
              how far the forward part rounds decides how many ReLUs are on the other side of 0
  gradients   of nets of smooth functions (SiLU for ReLU, average for max pooling), per tensor against PyTorch in f64:
              error^2 <= 1e-8 max(|g_t|^2, 1e-4 |g|^2). Of nets as they are, where a ReLU on the other side of 0 makes even
              PyTorch in f32 differ from f64: NMSE of the whole gradient, median over the steps, <= 10 times PyTorch's own.
              With --full batches are so large that PyTorch has such a ReLU in most steps; the quick tier counts its
              median as at least what one of them makes.
  optimizer   what PyTorch's makes of our gradients, from its own state: |dp| <= 1e-6 max(|p|, lr)
  statistics  running variance within 1e-5 of the largest, mean within 1e-5 of the largest deviation
A case of kind `free` runs on from its own state: parameters' relative difference <= 1e-3 after all steps."""
import argparse
import copy
import fnmatch
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import onnx
import onnx.numpy_helper
import torch
import torchvision
from torch import nn

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
CLASSES = 10


def images(count, channels, size, seed):
    """Noise plus broad stripes of random direction, so that samples differ after global pooling too."""
    g = torch.Generator().manual_seed(seed)
    v, u = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    out = 0.5 * torch.randn(count, channels, size, size, generator=g)
    for n in range(count):
        f, phase, level = torch.randn(3, generator=g) * 6, torch.randn(1, generator=g), torch.randn(channels, generator=g)
        out[n] += torch.sin(f[0] * u + f[1] * v + 3 * phase) + 0.5 * level[:, None, None]
    return out


# ---- models: each gives (module, what makes an input of n samples) ----


def mlp():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, CLASSES))
    return net, lambda n, seed: images(n, 3, 8, seed)


def cnn():
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.0), nn.Linear(128, CLASSES))
    return net, lambda n, seed: images(n, 1, 28, seed)


def resnet(depth, size):
    net = getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)
    if size == 32:
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net, lambda n, seed: images(n, 3, size, seed)


def vision(name, size):
    net = getattr(torchvision.models, name)(num_classes=CLASSES)
    return net, lambda n, seed: images(n, 3, size, seed)


def vit():
    net = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64,
                                               mlp_dim=128, num_classes=CLASSES)
    nn.init.normal_(net.heads.head.weight, std=0.05)
    return net, lambda n, seed: images(n, 3, 32, seed)


class Encoder(nn.Module):
    """Token and position embeddings, two encoder layers, the mean over the tokens."""

    def __init__(self, activation):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(1, 12, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation=activation, batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        y = self.tokens(x) + self.places
        for layer in self.layers:
            y = layer(y)
        return self.head(y.mean(1))


def tokens(n, seed):
    return torch.randint(0, 50, (n, 12), generator=torch.Generator().manual_seed(seed))


def encoder(activation="relu"):
    return Encoder(activation), tokens


class Language(nn.Module):
    """Scores of every next token, with the embedding as the output's weight too: one parameter, two uses."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", norm_first=True)

    def forward(self, x):
        y = self.norm(self.layer(self.tokens(x).transpose(0, 1))).transpose(0, 1)
        return torch.matmul(y, self.tokens.weight.t()).transpose(1, 2)  # (N, scores, tokens)


def language():
    return Language(), tokens


class Mixed(nn.Module):
    """What the other nets do not have: transposed and grouped convolution, group and instance normalisation, upsampling,
    concatenation, slices, padding, PReLU and LeakyReLU."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 12, 3, stride=2, padding=1)
        self.group, self.norm = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=4), nn.GroupNorm(3, 12)
        self.up, self.instance = nn.ConvTranspose2d(12, 6, 4, stride=2, padding=1), nn.InstanceNorm2d(6, affine=True)
        self.a, self.b = nn.PReLU(12, 0.9), nn.LeakyReLU(0.8)
        self.last = nn.Conv2d(9, CLASSES, 1)

    def forward(self, x):
        y = self.a(self.norm(self.group(self.down(x))))
        y = self.b(self.instance(self.up(y)))
        y = torch.cat([y, nn.functional.interpolate(x[:, :, ::2, 1::2], scale_factor=2, mode="nearest")], 1)
        y = nn.functional.pad(self.last(y), (1, 0, 0, 2))
        return (y.mean((2, 3)) + y.amax((2, 3)) * 0.1) * torch.sigmoid(y[:, :, 3, 3])


def mixed():
    return Mixed(), lambda n, seed: images(n, 3, 16, seed)


def smooth(net):
    for name, child in net.named_children():
        if isinstance(child, (nn.ReLU, nn.ReLU6, nn.LeakyReLU)):
            setattr(net, name, nn.SiLU())
        elif isinstance(child, nn.MaxPool2d):
            setattr(net, name, nn.AvgPool2d(child.kernel_size, child.stride, child.padding, count_include_pad=False))
        else:
            smooth(child)
    return net


# ---- cases ----


class Case:
    def __init__(self, name, build, optimizer="sgd", bn="train", export="train", opset=17, batch=8, steps=3, full=False,
                 is_smooth=False, loss="cross-entropy", free=False, parts=1, freeze="", full_batch=0, extra=()):
        self.__dict__.update(locals())


def cases():
    s = dict(is_smooth=True)
    out = [
        Case("mlp", mlp),
        Case("mlp-smooth-adamw", mlp, "adamw", opset=13, **s),
        Case("mlp-eval", mlp, export="eval", **s),
        Case("mlp-nesterov-clip", mlp, extra=("nesterov=1", "decay=0.01", "clip=0.5"), **s),
        Case("mlp-mse", mlp, loss="mse", **s),
        Case("mlp-l1", mlp, loss="l1"),
        Case("mlp-bce", mlp, "adamw", loss="bce", **s),
        Case("mlp-smoothing", mlp, extra=("smoothing=0.1",), **s),
        Case("mlp-parts", mlp, batch=10, parts=3, **s),
        Case("cnn", cnn, batch=16),
        Case("cnn-13", cnn, "adamw", opset=13, batch=16),
        Case("cnn-smooth", cnn, batch=16, **s),
        Case("cnn-smooth-frozen", cnn, "adamw", bn="frozen", batch=16, **s),
        Case("cnn-recompute", cnn, batch=16, extra=("recompute=1",), **s),
        Case("resnet18", lambda: resnet(18, 32), batch=6, steps=12, full_batch=24),
        Case("resnet18-smooth", lambda: resnet(18, 32), batch=4, steps=2, **s),
        Case("cnn-frozen", cnn, bn="frozen", batch=16),
        Case("resnet18-frozen", lambda: resnet(18, 32), "adamw", bn="frozen", batch=24, full=True),
        Case("resnet18-eval", lambda: resnet(18, 32), export="eval", bn="frozen", batch=4, steps=1),
        Case("vit", vit, "adamw", opset=13, **s),
        Case("vit-eval", vit, "sgd", export="eval", **s),
        Case("vit-freeze", vit, freeze="encoder.layers.encoder_layer_[01].*", **s),
        Case("encoder", encoder, "sgd"),
        Case("encoder-gelu-adamw", lambda: encoder("gelu"), "adamw", opset=13, **s),
        Case("language-tied", language, "adamw", **s),
        Case("mixed", mixed, "adamw"),
        Case("mixed-smooth", mixed, **s),
        Case("mlp-free", mlp, free=True, steps=50, **s),
        Case("vit-free", vit, "adamw", free=True, steps=50, **s),
        Case("resnet34", lambda: resnet(34, 32), batch=24, full=True),
        Case("resnet34-smooth", lambda: resnet(34, 32), batch=4, full=True, **s),
        Case("resnet34-frozen", lambda: resnet(34, 32), bn="frozen", batch=24, full=True),
        Case("resnet34-224", lambda: resnet(34, 224), batch=4, full=True),
        Case("resnet34-224-smooth", lambda: resnet(34, 224), batch=4, full=True, **s),
        Case("regnet_y_400mf", lambda: vision("regnet_y_400mf", 64), batch=8, full=True),
        Case("regnet_y_400mf-smooth", lambda: vision("regnet_y_400mf", 64), "adamw", batch=8, full=True, **s),
        Case("mobilenet_v2", lambda: vision("mobilenet_v2", 64), batch=8, full=True),
        Case("mobilenet_v2-smooth", lambda: vision("mobilenet_v2", 64), batch=8, full=True, **s),
        Case("mobilenet_v2-frozen", lambda: vision("mobilenet_v2", 64), "adamw", bn="frozen", batch=8, full=True),
    ]
    return out


def norms(net):
    return [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]


def build(case):
    """The module, with running statistics of the kind of data it sees, and its inputs."""
    torch.manual_seed(sum(case.name.encode()))
    net, inputs = case.build()
    for m in net.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    if case.is_smooth:
        net = smooth(net)
    if case.export == "eval":  # the exporter makes one weight of those that are equal
        for p in net.parameters():
            p.data += 0.01 * torch.randn(p.shape)
    for name, p in net.named_parameters():
        p.requires_grad_(not fnmatch.fnmatch(name, case.freeze))
    before = [m.momentum for m in norms(net)]
    for m in norms(net):
        m.momentum = 1.0
    net.train()
    if before:
        with torch.no_grad():
            net(inputs(16, 99))
    for m, momentum in zip(norms(net), before):
        m.momentum = momentum
    return net, inputs


def export(case, net, x, path):
    training = case.export == "train"
    torch.onnx.export(net, x, path, training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL,
                      do_constant_folding=False, opset_version=case.opset, input_names=["x"], output_names=["logits"],
                      dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}})
    # tracing a net in training mode moves its running statistics: the file's are the ones to begin with
    for weight in onnx.load(path).graph.initializer:
        if "running_" in weight.name:
            dict(net.named_buffers())[weight.name].copy_(torch.from_numpy(onnx.numpy_helper.to_array(weight).copy()))


def mode(case, net):
    net.train(case.export == "train")
    if case.bn == "frozen":
        for m in norms(net):
            m.eval()
    return net


def extra(case, key, otherwise=0.0):
    return next((float(e.split("=")[1]) for e in case.extra if e.startswith(key + "=")), otherwise)


def loss_of(case, out, y):
    if case.loss == "cross-entropy":
        return nn.functional.cross_entropy(out, y, label_smoothing=extra(case, "smoothing"))
    y = y.to(out.dtype)
    return {"mse": nn.functional.mse_loss, "l1": nn.functional.l1_loss,
            "bce": nn.functional.binary_cross_entropy_with_logits}[case.loss](out, y)


def targets(case, out, seed):
    g = torch.Generator().manual_seed(seed + 5)
    if case.loss == "cross-entropy":
        shape = (out.shape[0],) + tuple(out.shape[2:])
        y = torch.randint(0, out.shape[1], shape, generator=g)
        if y.dim() > 1:
            y[0, :3] = -100
        return y
    y = torch.rand(out.shape, generator=g)
    return (y > 0.5).float() if case.loss == "bce" else y


def make_optimizer(case, params):
    if case.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=1e-3), 1e-3
    nesterov = extra(case, "nesterov") > 0
    return torch.optim.SGD(params, lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=extra(case, "decay")), 0.02


# ---- the peer ----


class Peer:
    def __init__(self, program, path, case):
        words = [program, path, f"loss={case.loss}", f"bn={case.bn}", f"optimizer={case.optimizer}", f"batch={case.batch}"]
        words += [f"freeze={case.freeze}"] if case.freeze else []
        self.p = subprocess.Popen(words + list(case.extra), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.tensors, self.warning = [], ""
        while (line := self.line()) != "ready":
            if line.startswith("warning "):
                self.warning = line[8:]
            else:
                kind, name, count = line.split(" ")
                self.tensors.append((kind, name, int(count)))

    def line(self):
        line = self.p.stdout.readline().decode().rstrip("\n")
        if not line or line.startswith("error "):
            raise RuntimeError(line or f"the peer ended: {self.p.wait()}")
        return line

    def send(self, text, *arrays):
        self.p.stdin.write(text.encode() + b"\n")
        for a in arrays:
            self.p.stdin.write(a.detach().contiguous().numpy().tobytes())
        self.p.stdin.flush()

    def values(self, count):
        return torch.from_numpy(np.frombuffer(self.p.stdout.read(4 * count), np.float32).copy())

    def run(self, x, y, divisor):
        self.send(f"run {x.shape[0]} {divisor}", x, y)
        _, loss, count = self.line().split()
        self.logits = self.values(int(count))
        return float(loss)

    def flush(self, lr, step):
        self.send(f"flush {lr!r} {step}")
        norm = float(self.line().split()[1])
        grads = {n.split("/", 1)[1]: self.values(c) for k, n, c in self.tensors if k == "param"}
        return norm, grads, {n: self.values(c) for _, n, c in self.tensors}

    def close(self):
        self.p.stdin.close()
        self.p.stdout.close()
        if self.p.wait() != 0:
            raise RuntimeError(f"the peer ended with {self.p.returncode}")


SLOTS = {"momentum": "momentum_buffer", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def give_state(peer, net, optimizer):
    params, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    for _, full_name, count in peer.tensors:
        kind, name = full_name.split("/", 1)
        if kind == "param":
            value = params[name]
        elif kind == "state":
            value = buffers[name]
        else:
            value = optimizer.state.get(params[name], {}).get(SLOTS[kind])
            value = torch.zeros(count) if value is None else value
        peer.send(f"set {full_name}", value)


def gradients(case, net, x, y):
    net.zero_grad()
    out = net(x)
    loss = loss_of(case, out, y)
    loss.backward()
    grads = {n: p.grad.detach().clone().flatten() for n, p in net.named_parameters() if p.grad is not None}
    return float(loss), grads, out.detach()


def square(a):
    return float((a.double() ** 2).sum())


class Worst:
    """The largest of what must not exceed a bound, and where it was."""

    def __init__(self):
        self.of = {}

    def see(self, what, value, where=""):
        if not value <= self.of.get(what, (-1, ""))[0]:
            self.of[what] = (value, where)


def compare_gradients(case, worst, step, ours, theirs32, theirs64, ratios):
    total = sum(square(g) for g in theirs64.values())
    missing = set(theirs64) ^ set(ours)
    if missing:
        raise RuntimeError(f"parameters differ: {sorted(missing)[:4]}")
    if case.is_smooth:
        for name, g in theirs64.items():
            allowed = 1e-8 * max(square(g), 1e-4 * total)
            error = square(ours[name].double() - g) / allowed if allowed else float(square(ours[name]) > 0)
            worst.see("gradient error^2 / bound", error, f"{name} step {step}")
    else:
        nmse = [sum(square(o[n].double() - g) for n, g in theirs64.items()) / total for o in (ours, theirs32)]
        ratios.append(nmse)


def one_step(case, peer, net, optimizer, lr, step, x, y, worst, ratios, forward):
    net64 = mode(case, copy.deepcopy(net).double())
    give_state(peer, net, optimizer)
    divisor = float((y != -100).sum()) if case.loss == "cross-entropy" else float(x.shape[0])
    before = copy.deepcopy(optimizer.state_dict())
    old = [p.detach().clone().requires_grad_() for p in net.parameters()]
    loss, logits = 0, []
    for a, b in zip(x.chunk(case.parts), y.chunk(case.parts)):
        loss += peer.run(a, b, divisor)
        logits.append(peer.logits)
    _, ours, after = peer.flush(lr, step + 1)
    want, theirs, out = gradients(case, net, x, y)
    worst.see("loss", abs(loss - want) / max(1, want), f"step {step}")
    _, exact, right = gradients(case, net64, x.double() if x.is_floating_point() else x, y)
    forward.append([square(o.double() - right.flatten()) / square(right) for o in (torch.cat(logits), out.flatten())])
    compare_gradients(case, worst, step, ours, theirs, exact, ratios)
    clip = extra(case, "clip")
    # PyTorch's optimizer, from its state, on our gradients
    twin, _ = make_optimizer(case, old)
    twin.load_state_dict(before)
    trained = [(p, name) for p, (name, new) in zip(old, net.named_parameters()) if new.requires_grad]
    for p, name in trained:
        p.grad = ours[name].reshape(p.shape)
    if clip:
        nn.utils.clip_grad_norm_(old, clip)
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    twin.step()
    for p, name in trained:
        difference = (after[f"param/{name}"] - p.detach().flatten()).abs()
        worst.see("optimizer |dp| / bound", float((difference / (1e-6 * p.detach().flatten().abs().clamp(min=lr))).max()), name)
    buffers = dict(net.named_buffers())
    for name, value in after.items():
        if name.startswith("state/"):
            b = buffers[name[6:]].flatten()
            size = buffers[name[6:].replace("running_mean", "running_var")].abs().max()  # a mean may be 0 in theory
            size = size.sqrt() if name.endswith("running_mean") else size
            worst.see("statistics / bound", float((value - b).abs().max() / (1e-5 * size)), name)
    optimizer.step()


def run_case(case, program, steps, folder):
    net, inputs = build(case)
    path = os.path.join(folder, "model.onnx")
    export(case, net, inputs(2, 1), path)
    mode(case, net)
    peer = Peer(program, path, case)
    optimizer, lr = make_optimizer(case, net.parameters())
    worst, ratios, forward = Worst(), [], []
    fused = case.export == "eval" and norms(net)
    if case.free:
        give_state(peer, net, optimizer)
    for step in range(1 if fused else steps):
        x = inputs(case.batch, 1000 + step)
        with torch.no_grad():
            y = targets(case, copy.deepcopy(net)(x), step)
        if fused:  # its parameters are not PyTorch's: the loss only
            want, _, _ = gradients(case, net, x, y)
            worst.see("loss", abs(peer.run(x, y, float(x.shape[0])) - want))
            worst.see("no warning", float(not peer.warning))
        elif case.free:
            loss = peer.run(x, y, float(x.shape[0]))
            _, _, after = peer.flush(lr, step + 1)
            want, _, _ = gradients(case, net, x, y)
            optimizer.step()
            worst.see("loss, free", abs(loss - want), f"step {step}")
        else:
            one_step(case, peer, net, optimizer, lr, step, x, y, worst, ratios, forward)
    if case.free:
        error = sum(square(after[f"param/{n}"] - p.detach().flatten()) for n, p in net.named_parameters())
        worst.see("parameters, free", math.sqrt(error / sum(square(p.detach()) for p in net.parameters())))
    if forward:
        ratio, ours, theirs = statistics.median_low((a / max(b, 2e-14), a, b) for a, b in forward)
        worst.see("logits' NMSE / PyTorch's", ratio, f"{ours:.1e} and {theirs:.1e}")
    if ratios:
        ours, theirs = (statistics.median(r[i] for r in ratios) for i in range(2))
        least = 1e-6 if case.full_batch and steps < 20 else 1e-16
        worst.see("NMSE / PyTorch's", ours / max(theirs, least), f"{ours:.1e} and {theirs:.1e}")
    peer.close()
    return worst.of


BOUNDS = {"loss": 1e-5, "gradient error^2 / bound": 1, "optimizer |dp| / bound": 1, "statistics / bound": 1, "no warning": 0,
          "loss, free": 1e-3, "parameters, free": 1e-3, "NMSE / PyTorch's": 10,
          "logits' NMSE / PyTorch's": 2.5}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("words", nargs="*")
    a = parser.parse_intermixed_args()
    bad = 0
    names = [case.name for case in cases()]
    chosen = {n for w in a.words for n in ([w] if w in names else [n for n in names if w in n])}
    if a.words and not chosen:
        sys.exit(f"no case is called {' or '.join(a.words)}")
    for case in cases():
        if (case.full and not (a.full or case.name in a.words)) or (a.words and case.name not in chosen):
            continue
        if a.list:
            print(case.name)
            continue
        start = time.monotonic()
        if a.full and case.full_batch:
            case.batch = case.full_batch
        with tempfile.TemporaryDirectory() as folder:
            try:
                got = run_case(case, a.peer, a.steps or (50 if a.full else case.steps), folder)
            except RuntimeError as why:
                got = {str(why): (math.inf, "")}
        wrong = [w for w, (v, _) in got.items() if not v <= BOUNDS.get(w, 0)]
        bad += bool(wrong)
        text = ", ".join(f"{w} {v:.2g}{' (' + at + ')' if at else ''}" for w, (v, at) in got.items())
        print(f"{'FAILED' if wrong else 'ok'} {case.name}: {text}; {time.monotonic() - start:.1f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
