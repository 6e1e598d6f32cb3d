"""Attention as exporters write it, against PyTorch: every way becomes our one node, in every backend."""
import json
import math
import pathlib
import tempfile
import warnings

import numpy

from harness import local


def torch_():
    import torch
    warnings.filterwarnings("ignore")
    return torch


def nets():
    """NAME -> (module, inputs, dynamic axes by input, attention nodes)."""
    torch = torch_()
    from torch import nn

    class Joined(nn.Module):
        """Queries, keys and values in one product, taken apart by a leading axis of three (timm)."""

        def __init__(self, split):
            super().__init__()
            self.qkv, self.proj, self.split = nn.Linear(48, 144), nn.Linear(48, 48), split

        def forward(self, x):
            n, l, c = x.shape
            if self.split:
                q, k, v = self.qkv(x).split(48, dim=-1)
                q, k, v = (t.view(n, l, 4, 12).transpose(1, 2) for t in (q, k, v))
            else:
                q, k, v = self.qkv(x).reshape(n, l, 3, 4, 12).permute(2, 0, 3, 1, 4).unbind(0)
            a = ((q * 12 ** -0.5) @ k.transpose(-2, -1)).softmax(dim=-1)
            return self.proj((a @ v).transpose(1, 2).reshape(n, l, c))

    class Masked(nn.Module):
        """Three products, scores divided, a mask by key (BERT); or both sides scaled before (newer exporters)."""

        def __init__(self, both):
            super().__init__()
            self.q, self.k, self.v, self.both = nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40), both

        def forward(self, x, mask):
            def heads(t):
                return t.view(t.shape[0], -1, 5, 8).permute(0, 2, 1, 3)
            q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
            more = (1.0 - mask[:, None, None, :]) * -10000.0
            if self.both:
                s = math.sqrt(1 / math.sqrt(8))
                scores = more + (q * s) @ (k.transpose(-1, -2) * s)
            else:
                scores = q @ k.transpose(-1, -2) / math.sqrt(8) + more
            y = nn.functional.softmax(scores, dim=-1) @ v
            return y.permute(0, 2, 1, 3).contiguous().view(x.shape[0], -1, 40)

    class Plain(nn.Module):
        """One head; and scores that somebody else reads too, which stay as they are."""

        def __init__(self, shown):
            super().__init__()
            self.shown = shown

        def forward(self, x):
            a = torch.softmax(x @ x.transpose(1, 2) * 0.25, dim=-1)
            return (a @ x, a) if self.shown else a @ x

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.MultiheadAttention(32, 4, batch_first=True, kdim=24, vdim=24)

        def forward(self, x, memory):
            return self.a(x, memory, memory, need_weights=False)[0]

    class Causal(nn.Module):
        def __init__(self, layers):
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", norm_first=True)
            self.e = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.register_buffer("mask", torch.triu(torch.full((11, 11), float("-inf")), diagonal=1))

        def forward(self, x):
            return self.e(x.transpose(0, 1), self.mask).transpose(0, 1)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64), 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.e(x.transpose(0, 1)).transpose(0, 1)

    def windows():
        from torchvision.models.swin_transformer import ShiftedWindowAttention
        return ShiftedWindowAttention(24, [4, 4], [0, 0], 3)

    def vit():
        from torchvision.models import VisionTransformer
        net = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64)
        nn.init.normal_(net.heads.head.weight)
        return net

    torch.manual_seed(3)
    r = torch.randn
    n, nl = {0: "N"}, {0: "N", 1: "L"}
    mask = (torch.rand(2, 9) > 0.3).float()
    return {
        "encoder": (Encoder(), [r(3, 11, 32)], [n], 2),
        "encoder of any length": (Encoder(), [r(3, 11, 32)], [nl], 2),
        "encoder of fixed sizes": (Encoder(), [r(1, 11, 32)], [{}], 2),
        "causal": (Causal(2), [r(2, 11, 32)], [n], 2),
        "joined": (Joined(False), [r(2, 9, 48)], [n], 1),
        "split": (Joined(True), [r(2, 9, 48)], [nl], 1),
        "masked": (Masked(False), [r(2, 9, 40), mask], [nl, nl], 1),
        "masked, both scaled": (Masked(True), [r(2, 9, 40), mask], [n, n], 1),
        "cross": (Cross(), [r(2, 7, 32), r(2, 5, 24)], [n, n], 1),
        "plain": (Plain(False), [r(2, 9, 16)], [n], 1),
        "shown": (Plain(True), [r(2, 9, 16)], [n], 0),
        "windows": (windows(), [r(2, 8, 8, 24)], [n], 1),
        "vit": (vit(), [r(2, 3, 32, 32)], [n], 2),
    }


def check(folder, name, net, inputs, axes, count, opset, backends):
    torch = torch_()
    net.eval()
    for p in net.parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p, 0.5, 0.2)
    path = folder / "net.onnx"
    with torch.no_grad():
        want = net(*inputs)
    want = [w.numpy() for w in (want if isinstance(want, tuple) else [want])]
    names = [f"x{i}" for i in range(len(inputs))]
    outs = [f"y{i}" for i in range(len(want))]
    torch.onnx.export(net, tuple(inputs), str(path), opset_version=opset, input_names=names, output_names=outs,
                      dynamic_axes={k: a for k, a in zip(names, axes) if a})
    flags = []
    for k, x in zip(names, inputs):
        numpy.save(folder / f"{k}.npy", x.numpy())
        flags.append(f"--input={k}={folder}/{k}.npy")
    rows = json.loads(local("bench", path, *flags, "--repeat=1", "--ops", "--json").out)
    ops = [node["op"] for node in rows["nodes"]]
    assert ops.count("Attention") == count, f"{name}, opset {opset}: {ops}"
    if count:
        assert "Softmax" not in ops, f"{name}, opset {opset}: {ops}"
    for backend in backends:
        local("infer", path, *flags, f"--output={folder}/out/", f"--backend={backend}")
        for k, y in zip(outs, want):
            got = numpy.load(folder / "out" / f"{k}.npy")
            assert got.shape == y.shape, (name, got.shape)
            bad = abs(got - y).max() / abs(y).max()
            assert bad <= 1e-5, f"{name}, opset {opset}, {backend}: {bad}"


def test_every_way_of_writing_it():
    with tempfile.TemporaryDirectory() as folder:
        for name, (net, inputs, axes, count) in nets().items():
            check(pathlib.Path(folder), name, net, inputs, axes, count, 14, ["auto", "ref", "blas"])


def test_every_opset():
    with tempfile.TemporaryDirectory() as folder:
        all_nets = nets()
        for opset in (11, 13, 15, 16, 17):
            for name in ("encoder of any length", "masked", "joined"):
                check(pathlib.Path(folder), name, *all_nets[name], opset, ["auto"])
