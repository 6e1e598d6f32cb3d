#!/usr/bin/python3
"""Golden models from PyTorch: ONNX files with inputs and the outputs that PyTorch computes for them.

Usage: make_models.py FOLDER [NAME...]     (a build folder: the files are big and are not kept in the repository)

For every model NAME: NAME.onnx (opset 13, dynamic batch "N", input "x", output "logits"), NAME.x.npy (two samples, f32),
NAME.y.npy (PyTorch, f32) and NAME.y64.npy (the same weights, computed in f64).

Image models have seeded weights, and batch-norm statistics set by one train-mode forward with momentum 1: with fresh
statistics the activations of a deep net shrink or explode, and a wrong net would pass. For the same reason a model whose
outputs for two inputs differ by under 1e-2 relative (max|a-b| / max|b|) is refused. The weights do not depend on the
image size, so NAME_64 and NAME_224 share them. Deterministic on one machine; work is skipped when the stamp matches.
"""
import hashlib
import os
import sys
import warnings

import numpy as np
import torch
import torchvision

warnings.filterwarnings("ignore")
OPSET = 13
MIN_DIFFERENCE = 1e-2


def images(count, size, seed):
    """Noise plus broad stripes of random direction and colour, so that samples differ after global pooling too."""
    g = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, size)
    v, u = torch.meshgrid(grid, grid, indexing="ij")
    out = 0.5 * torch.randn(count, 3, size, size, generator=g)
    for n in range(count):
        for c in range(3):
            f = 6 * torch.randn(2, generator=g)
            phase, level = torch.randn(2, generator=g)
            out[n, c] += torch.sin(f[0] * u + f[1] * v + 3 * phase) + 0.5 * level
    return out


def vision(build, seed):
    torch.manual_seed(seed)
    model = build(weights=None)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    before = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 1.0
    model.train()
    with torch.no_grad():
        model(images(8, 128, seed + 1))
    for m, momentum in zip(norms, before):
        m.momentum = momentum
    return model.eval()


class Encoder(torch.nn.Module):
    """TransformerEncoder on (N, tokens, width). Sequence-first inside, which keeps PyTorch off its fused fast path
    (an operator without an ONNX form)."""

    def __init__(self, layers, width, heads, ffn, seed):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, heads, ffn, norm_first=False, batch_first=False)
        self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():  # the constructor copies one layer, so that all have the same weights
            for name, p in self.named_parameters():
                r = torch.randn(p.shape, generator=g)
                if p.dim() > 1:
                    p.copy_(r * (1.5 / p.shape[1]) ** 0.5)
                elif "norm" in name and name.endswith("weight"):
                    p.copy_(1 + 0.1 * r)
                else:
                    p.copy_(0.05 * r)
        self.eval()

    def forward(self, x):
        return self.encoder(x.transpose(0, 1)).transpose(0, 1)


def tokens(count, length, width, seed):
    return torch.randn(count, length, width, generator=torch.Generator().manual_seed(seed))


def catalogue():
    """NAME -> (build a model, build inputs, keep batch-norm nodes). Builders of one net share a cache."""
    cache = {}

    def once(key, build):
        if key not in cache:
            cache[key] = build()
        return cache[key]

    nets = {
        "resnet34": (torchvision.models.resnet34, 1),
        "regnet_y_400mf": (torchvision.models.regnet_y_400mf, 2),
        "mobilenet_v2": (torchvision.models.mobilenet_v2, 3),
    }
    out = {}
    for net, (build, seed) in nets.items():
        for size in (64, 224):
            out[f"{net}_{size}"] = (
                lambda net=net, build=build, seed=seed: once(net, lambda: vision(build, seed)),
                lambda size=size, seed=seed: images(2, size, 100 + seed),
                False,
            )
    # The exporter folds batch-norm into convolutions; these keep the nodes, so that our own folding is tested.
    out["mobilenet_v2_bn_64"] = (out["mobilenet_v2_64"][0], out["mobilenet_v2_64"][1], True)
    out["resnet34_bn_224"] = (out["resnet34_224"][0], out["resnet34_224"][1], True)
    out["encoder_2x64"] = (lambda: Encoder(2, 64, 4, 128, 11), lambda: tokens(2, 16, 64, 111), False)
    out["encoder_6x384"] = (lambda: Encoder(6, 384, 6, 1536, 12), lambda: tokens(2, 128, 384, 112), False)
    return out


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def make(folder, name, model, x, keep_norms):
    import copy

    with torch.no_grad():
        y = model(x).numpy()
        y64 = copy.deepcopy(model).double()(x.double()).numpy()
    if not np.isfinite(y64).all():
        sys.exit(f"{name}: outputs are not finite")
    difference = relative(y64[0], y64[1])
    if difference < MIN_DIFFERENCE:
        sys.exit(f"{name}: outputs for two inputs differ by {difference:.2e} relative only: a wrong net would pass")
    if relative(y, y64) > 1e-4:
        sys.exit(f"{name}: f32 and f64 differ by {relative(y, y64):.2e}: too ill-conditioned for a golden file")
    path = os.path.join(folder, name)
    torch.onnx.export(
        model,
        x,
        path + ".onnx.part",
        opset_version=OPSET,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}},
        do_constant_folding=not keep_norms,
        training=torch.onnx.TrainingMode.PRESERVE if keep_norms else torch.onnx.TrainingMode.EVAL,
    )
    np.save(path + ".x.npy", x.numpy())
    np.save(path + ".y.npy", y)
    np.save(path + ".y64.npy", y64)
    os.replace(path + ".onnx.part", path + ".onnx")
    print(f"{name}: {os.path.getsize(path + '.onnx')} bytes, two inputs differ by {difference:.2e}, "
          f"f32 against f64 {relative(y, y64):.1e}", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.split("\n\n")[1])
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.abspath(__file__), "rb") as f:
        stamp = hashlib.sha256(f.read()).hexdigest() + f" torch {torch.__version__} torchvision {torchvision.__version__}"
    models = catalogue()
    for name in sys.argv[2:] or models:
        if name not in models:
            sys.exit(f"unknown model {name} (known: {', '.join(models)})")
        path = os.path.join(folder, name)
        files = [path + end for end in (".onnx", ".x.npy", ".y.npy", ".y64.npy")]
        try:
            with open(path + ".stamp") as f:
                if f.read() == stamp and all(os.path.exists(p) for p in files):
                    continue
        except OSError:
            pass
        build, inputs, keep_norms = models[name]
        make(folder, name, build(), inputs(), keep_norms)
        with open(path + ".stamp", "w") as f:
            f.write(stamp)


if __name__ == "__main__":
    main()
