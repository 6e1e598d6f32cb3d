"""`yoke model new`: the files are networks of torchvision, for ONNX, for ONNX Runtime and for PyTorch."""
import pathlib
import sys
import tempfile

import numpy
import onnx
import torch

import harness
from harness import local, yoke

sys.path.insert(0, str(harness.ROOT / "tests/golden"))
import ort  # noqa: E402
import torch_nets  # noqa: E402

CASES = [("mlp", 10, 1, 28, 28), ("cnn", 10, 1, 28, 28), ("cnn", 3, 3, 9, 14), ("resnet-small", 10, 1, 28, 28),
         ("resnet18", 7, 3, 40, 32), *([("resnet34", 10, 3, 32, 32)] if harness.FULL else []), ("vit-tiny", 10, 3, 32, 32), ("vit-tiny", 5, 1, 28, 20)]


def new(folder, kind, classes, channels, height, width, seed=1, name="m.onnx"):
    path = pathlib.Path(folder, name)
    yoke("model", "new", kind, f"--classes={classes}", f"--input={channels}x{height}x{width}", f"--seed={seed}", path)
    return path


def relative(a, b):
    return abs(a - b).max() / abs(b).max()


def test_same_networks_as_pytorch():
    torch.manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        for kind, classes, *size in CASES:
            if kind == "vit-tiny" and size[1] != size[2]:
                continue  # torchvision takes squares only
            path = new(folder, kind, classes, *size)
            onnx.checker.check_model(onnx.load(path), full_check=True)
            x = torch.randn(3, *size)
            with torch.no_grad():
                want = torch_nets.load(torch_nets.make(kind, classes, *size), path).double().eval()(x.double()).numpy()
            numpy.save(f"{folder}/x.npy", x.numpy())
            local("infer", path, f"--input={folder}/x.npy", f"--output={folder}/y.npy")
            got = numpy.load(f"{folder}/y.npy")
            assert got.shape == (3, classes) and relative(got, want) < 1e-5, (kind, relative(got, want))
            theirs = ort.run(path, {"x": x.numpy()})
            assert theirs is None or relative(theirs["logits"], want) < 1e-5, kind


def test_initial_values_as_pytorch():
    """Every tensor is constant where PyTorch's is, and has its mean and deviation else."""
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        for kind, classes, *size in CASES:
            if kind == "vit-tiny" and size[1] != size[2]:
                continue
            path = new(folder, kind, classes, *size)
            theirs = torch_nets.make(kind, classes, *size)
            ours = torch_nets.load(torch_nets.make(kind, classes, *size), path).state_dict()
            for name, want in theirs.state_dict().items():
                if name.endswith("num_batches_tracked") or name.startswith("heads.head"):
                    continue
                got, n = ours[name].double(), want.numel()
                want = want.double()
                if want.numel() == 1 or want.std() == 0:
                    assert torch.equal(got, want) or n == 1, (kind, name)
                    continue
                spread = want.std()
                assert abs(got.std() / spread - 1) < 6 / n ** 0.5 + 0.02, (kind, name, got.std(), spread)
                assert abs(got.mean() - want.mean()) < 8 * spread / n ** 0.5, (kind, name)
                if n > 100 and want.abs().max() < 1.8 * spread:  # uniform
                    assert got.abs().max() < 1.8 * spread, (kind, name)


def test_seed_decides():
    with tempfile.TemporaryDirectory() as folder:
        one, again, other = (new(folder, "cnn", 10, 1, 28, 28, seed, f"{i}.onnx").read_bytes()
                             for i, seed in enumerate((1, 1, 2)))
        assert one == again and one != other


def test_bad_wishes():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "o.onnx")
        for args, text in ((("lenet", "--input=1x28x28"), "no kind of network is called 'lenet'"),
                           (("cnn",), "--input=CxHxW"), (("cnn", "--input=1x28"), "--input=CxHxW"),
                           (("cnn", "--input=1x28x28x1"), "--input=CxHxW"), (("cnn", "--input=-1x28x28"), "--input=CxHxW"),
                           (("cnn", "--input=1x3x3"), "4x4 on"), (("vit-tiny", "--input=3x30x32"), "patches"),
                           (("mlp", "--input=0x3x3"), "channels 0"), (("mlp", "--input=3x3x3", "--classes=0"), "classes")):
            done = yoke("model", "new", *args, out, ok=False)
            assert done.code == 2 and text in done.err, (args, done.err)
            assert not out.exists()
        done = yoke("model", "new", "mlp", "--input=1x2x2", pathlib.Path(folder, "no", "o.onnx"), ok=False)
        assert done.code == 1 and "no/o.onnx" in done.err, done.err
