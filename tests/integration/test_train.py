"""`yoke local train`: what comes out loads elsewhere and goes on here, a kill changes nothing, and bad input is named."""
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness
from harness import DATASETS, FULL, SEED, local, yoke
from run import Skip, full

sys.path.insert(0, str(harness.ROOT / "tests/golden"))
import ort  # noqa: E402

FASHION = pathlib.Path(DATASETS, "fashion-mnist")


def new(folder, kind="cnn", size="1x12x12", classes=4, name="m.onnx"):
    path = pathlib.Path(folder, name)
    yoke("model", "new", kind, f"--classes={classes}", f"--input={size}", "--seed=5", path)
    return path


def data(folder, n=90, size=(1, 12, 12), classes=4, name="set", labels=None):
    """Samples whose class shows: a bright corner each, in noise."""
    rng = numpy.random.default_rng(3)
    y = rng.integers(0, classes, n)
    x = rng.standard_normal((n, *size)).astype("f4") * 0.3
    for i, c in enumerate(y):
        x[i, :, (c // 2) * size[1] // 2:, (c % 2) * size[2] // 2:] += 0.7
    path = pathlib.Path(folder, name)
    path.mkdir()
    numpy.save(path / "x.npy", x)
    numpy.save(path / "y.npy", (y if labels is None else labels).astype("i8"))
    return path


def weights(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


def steps(result):
    lines = [json.loads(line) for line in result.out.strip().split("\n")]
    epochs = [line for line in lines if "epoch" in line]
    assert all(set(line) == {"epoch", "validation_loss", "validation_accuracy"} for line in epochs), epochs
    lines = [line for line in lines if line not in epochs]
    assert [line["step"] for line in lines[:-1]] == list(range(1, len(lines))), lines[:3]
    assert all(set(line) == {"step", "loss", "ms"} for line in lines[:-1])
    assert set(lines[-1]) == {"images_per_s", "final_loss", "test_accuracy"}
    return [line["loss"] for line in lines[:-1]], lines[-1]


def train(model, path, *args, ok=True):
    return local("train", model, f"--data={path}", "--json", "--threads=1", *args, ok=ok)


def test_learns_and_writes():
    with tempfile.TemporaryDirectory() as folder:
        model, path, out = new(folder), data(folder), pathlib.Path(folder, "t.onnx")
        losses, last = steps(train(model, path, "--epochs=4", "--batch=16", f"--output={out}", "--val=0.2",
                                   f"--plot={folder}/loss.svg"))
        assert len(losses) == 4 * 5 and losses[-1] < 0.5 * losses[0], losses
        assert last["test_accuracy"] > 0.8 and last["final_loss"] == losses[-1] and last["images_per_s"] > 0
        xml.etree.ElementTree.parse(f"{folder}/loss.svg")
        onnx.checker.check_model(onnx.load(out), full_check=True)
        before, after = weights(model), weights(out)
        assert {n: v.shape for n, v in before.items()} == {n: v.shape for n, v in after.items()}
        moved = {n for n in before if not numpy.array_equal(before[n], after[n])}
        # A bias in front of a batch normalisation has no gradient but what rounding leaves.
        assert moved | {"0.bias", "4.bias"} == set(before), moved
        assert [n.op_type for n in onnx.load(model).graph.node] == [n.op_type for n in onnx.load(out).graph.node]
        x = numpy.load(path / "x.npy")
        local("infer", out, f"--input={path}/x.npy", f"--output={folder}/y.npy")
        ours, theirs = numpy.load(f"{folder}/y.npy"), ort.run(out, {"x": x})
        assert (ours.argmax(1) == numpy.load(path / "y.npy")).mean() > 0.8
        assert theirs is None or abs(theirs["logits"] - ours).max() < 1e-4 * abs(ours).max()
        again, _ = steps(train(out, path, "--epochs=1", "--batch=16"))
        assert again[0] < 0.5 * losses[0], again


def test_same_bytes():
    """Threads and the way to add up microbatches change nothing; a seed, an order and an optimizer do."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = data(folder, 50), pathlib.Path(folder, "t.onnx")
        model = new(folder)

        def run(*args):
            local("train", model, f"--data={path}", "--epochs=2", f"--output={out}", *args)
            return out.read_bytes()

        base = run("--batch=16", "--microbatch=8", "--threads=1")
        assert base == run("--batch=16", "--microbatch=8", "--threads=3")
        assert base == run("--batch=8", "--accumulate=2", "--threads=2")
        assert base != run("--batch=16", "--threads=1")  # statistics of other microbatches
        assert base != run("--batch=16", "--microbatch=8", "--seed=1")
        frozen = run("--batch=16", "--bn=frozen", "--threads=1")
        assert frozen != base and run("--batch=16", "--bn=frozen", "--optimizer=adamw") != frozen


def test_recompute():
    """Less memory, no other bit; and the memory of a training is what is planned, and a tenth."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cnn", "resnet-small"):
            model, path = new(folder, kind), pathlib.Path(folder, "set")
            path = path if path.exists() else data(folder, 40)
            out = [pathlib.Path(folder, f"{kind}{i}.onnx") for i in range(2)]
            for i in range(2):
                train(model, path, "--batch=16", f"--output={out[i]}", *["--recompute"][:i])
            assert out[0].read_bytes() == out[1].read_bytes()
        model, n = new(folder, "resnet-small", "1x28x28"), 256
        numpy.random.default_rng(1).standard_normal((n, 1, 28, 28)).astype("f4").tofile(f"{folder}/x")
        (numpy.arange(n) % 4).astype("i8").tofile(f"{folder}/y")
        peaks = []
        for words in ({}, {"RECOMPUTE": "1"}):
            with subprocess.Popen([harness.BIN / "bench_step", model, "1", f"{folder}/x", f"{folder}/y", str(n)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={**os.environ, **words}) as step:
                held = float(step.stderr.readline().split()[1]) * 1e6
                step.stdin.write("2\n")
                step.stdin.flush()
                step.stdout.readline()
                status = pathlib.Path(f"/proc/{step.pid}/status").read_text()
                peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
                step.stdin.close()
            assert peak <= 1.1 * held + (16 << 20), (held, peak)
            peaks.append((held, peak))
        assert peaks[1][0] < 0.9 * peaks[0][0] and peaks[1][1] < 0.9 * peaks[0][1], peaks


def test_validation_takes_no_second_model():
    """What judges reads the weights where they are: the peak of memory stays nearly what it is without."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, peaks = new(folder, "resnet18", "1x24x24"), data(folder, 64, (1, 24, 24)), []
        for val in ("none", "0.5"):
            words = [harness.BIN / "yoke", "local", "train", model, f"--data={path}", "--batch=8", "--epochs=2", f"--val={val}",
                     "--json", "--threads=1"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                for _ in range(5):  # the fifth step is behind a validation
                    process.stdout.readline()
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peaks.append(int(status.split("VmHWM:")[1].split()[0]))
                process.stdout.read()
        assert peaks[1] < 1.2 * peaks[0], peaks
        print(f"    {peaks[0] >> 10} and {peaks[1] >> 10} MiB")


def test_freeze():
    with tempfile.TemporaryDirectory() as folder:
        path, out = data(folder, 40), pathlib.Path(folder, "t.onnx")
        model = new(folder)
        train(model, path, "--batch=20", "--freeze=[0-8].*", "--bn=frozen", f"--output={out}")
        before, after = weights(model), weights(out)
        moved = {n for n in before if not numpy.array_equal(before[n], after[n])}
        assert moved == {"9.weight", "9.bias", "11.weight", "11.bias"}, moved


def killed(command, delay):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    process.stdout.close()
    return process.returncode


def kill_often(kind, rounds, *args):
    """Kills at random instants until one run comes to its end; the file is the undisturbed one's, to the bit."""
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        model, path = new(folder, kind), data(folder, 200)
        whole, parts, kept = (pathlib.Path(folder, n) for n in ("whole.onnx", "parts.onnx", "kept"))
        flags = [f"--data={path}", "--epochs=3", "--batch=8", "--threads=1", *args]
        begin = time.monotonic()
        want, _ = steps(local("train", model, "--json", *flags, f"--output={whole}"))
        seconds = time.monotonic() - begin
        command = [harness.BIN / "yoke", "local", "train", model, *flags, f"--checkpoint={kept}", "--checkpoint-every=3",
                   "--resume", f"--output={parts}"]
        kills = 0
        for _ in range(rounds):
            kills += killed(command, rng.uniform(0.02, seconds)) != 0
            if parts.exists():
                break
        done = local("train", model, "--json", *flags, f"--checkpoint={kept}", "--resume", f"--output={parts}")
        assert parts.read_bytes() == whole.read_bytes(), f"after {kills} kills"
        lines = [json.loads(line) for line in done.out.strip().split("\n")]
        for line in lines[:-1]:
            assert line["loss"] == want[line["step"] - 1]
        names = sorted(p.name for p in (kept / "checkpoint").iterdir())
        assert len(names) == 2 and names[-1] == f"step-{len(want):012d}", names
        return kills


def test_kill_changes_nothing():
    assert kill_often("cnn", 5) > 0
    kill_often("mlp", 3, "--optimizer=adamw", "--clip-norm=0.5", "--schedule=cosine", "--warmup=5")


@full
def test_kill_at_twenty_instants():
    assert sum(kill_often(kind, 10, *args) for kind, args in (("cnn", []), ("resnet-small", ["--microbatch=4"]))) >= 2


def test_go_on():
    """More epochs may follow; another training is refused, and so is one that is there unasked."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, kept = new(folder), data(folder, 40), pathlib.Path(folder, "kept")
        out = [pathlib.Path(folder, f"{i}.onnx") for i in range(2)]
        flags = ["--batch=16", f"--checkpoint={kept}"]
        train(model, path, "--batch=16", "--epochs=3", f"--output={out[0]}")
        train(model, path, *flags, "--epochs=2")
        for args, text in ((["--epochs=3"], "--resume"), (["--epochs=3", "--resume", "--lr=0.1"], "it has 'lr 0.05', this one 'lr 0.1'"),
                           (["--epochs=3", "--resume", "--std=2"], "it has 'std none', this one 'std 2'"),
                           (["--epochs=1", "--resume"], "has done 6 steps")):
            done = train(model, path, *flags, *args, ok=False)
            assert done.code == 1 and text in done.err, done.err
        losses = train(model, path, *flags, "--epochs=3", "--resume", f"--output={out[1]}").out
        assert json.loads(losses.split("\n")[0])["step"] == 7
        assert out[0].read_bytes() == out[1].read_bytes()
        newest = kept / "checkpoint/step-000000000009"
        newest.write_bytes(newest.read_bytes()[:-100])
        done = train(model, path, *flags, "--epochs=3", "--resume", f"--output={out[1]}")
        assert "not whole" in done.err and out[0].read_bytes() == out[1].read_bytes()


def checksum(data):
    """agent/checkpoint.c's."""
    h = 0
    for word in [*struct.unpack(f"<{len(data) // 8}Q", data[:len(data) // 8 * 8]),
                 int.from_bytes(data[len(data) // 8 * 8:], "little"), len(data)]:
        h = (h ^ word) * 0x9FB21C651E98DF25 % 2**64
        h ^= h >> 29
    return h


def before_fingerprints(path):
    """The checkpoint as versions without fingerprints of data wrote it; the lines that it had more."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[24:32], "little")
    head = json.loads(whole[64:64 + size])
    above, more = head["note"].split("the data's fingerprint ")
    head["note"] = above
    text = json.dumps(head, separators=(",", ":")).encode()
    assert len(text) <= size
    data = whole[:32] + hashlib.sha256(above.encode() + b"\0").digest() + text.ljust(size) + whole[64 + size:-8]
    path.write_bytes(data + checksum(data).to_bytes(8, "little"))
    return more


def test_other_data():
    """Data of the same size are told apart, wherever they lie; checkpoints that do not know theirs go on."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, kept = new(folder), data(folder, 24), pathlib.Path(folder, "kept")
        moved, other = shutil.copytree(path, pathlib.Path(folder, "moved")), shutil.copytree(path, pathlib.Path(folder, "other"))
        labels = numpy.load(other / "y.npy")
        labels[11] = (labels[11] + 1) % 4
        numpy.save(other / "y.npy", labels)
        flags = ["--batch=12", f"--checkpoint={kept}"]
        train(model, path, *flags, "--epochs=1")
        done = train(model, other, *flags, "--epochs=2", "--resume", ok=False)
        assert done.code == 1 and "other data" in done.err and f"'{path}'" in done.err and f"'{other}'" in done.err, done.err
        train(model, moved, *flags, "--epochs=2", "--resume")
        newest = kept / "checkpoint/step-000000000004"
        assert str(moved) in before_fingerprints(newest)
        assert "behind step 4" in train(model, path, *flags, "--epochs=3", "--resume").err
        done = train(model, other, *flags, "--epochs=4", "--resume", ok=False)  # the newest knows its data again
        assert done.code == 1 and "other data" in done.err, done.err


def test_disk_full():
    """Files may not grow over a limit that the checkpoint breaks: said, and the last good one goes on."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, kept = new(folder), data(folder, 64), pathlib.Path(folder, "kept")
        whole, parts = pathlib.Path(folder, "w.onnx"), pathlib.Path(folder, "p.onnx")
        flags = ["local", "train", model, f"--data={path}", "--epochs=2", "--batch=16", "--threads=1"]
        yoke(*flags, f"--output={whole}")
        yoke("local", "train", model, f"--data={path}", "--epochs=1", "--batch=16", "--threads=1", f"--checkpoint={kept}")
        size = max(p.stat().st_size for p in (kept / "checkpoint").iterdir())

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

        done = subprocess.run([harness.BIN / "yoke", *map(str, flags), f"--checkpoint={kept}", "--resume"], capture_output=True,
                              text=True, preexec_fn=limit)
        assert done.returncode == 1 and "the last good one stays" in done.stderr, done.stderr
        yoke(*flags, f"--checkpoint={kept}", "--resume", f"--output={parts}")
        assert parts.read_bytes() == whole.read_bytes()


def no_path_model(path):
    """A weight that only an ArgMax follows."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    w = numpy_helper.from_array(numpy.eye(6, dtype="f4"), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "mul"),
             helper.make_node("ArgMax", ["h"], ["i"], "arg", axis=1),
             helper.make_node("Cast", ["i"], ["y"], "cast", to=TensorProto.FLOAT)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w]),
                                opset_imports=[helper.make_opsetid("", 13)]), path)


def test_exports_of_pytorch():
    """For training: batch normalisation and dropout train, and the file that comes out is one for inference. For
    inference: it trains as it is, and the command says what is missing."""
    import torch
    from torch import nn
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
                        nn.Flatten(), nn.Linear(8 * 36, 4))
    with tempfile.TemporaryDirectory() as folder:
        path, out = data(folder, 80), pathlib.Path(folder, "t.onnx")
        x = numpy.load(path / "x.npy")
        for mode in (torch.onnx.TrainingMode.TRAINING, torch.onnx.TrainingMode.EVAL):
            training = mode == torch.onnx.TrainingMode.TRAINING
            model = pathlib.Path(folder, f"{int(training)}.onnx")
            torch.onnx.export(net.train(training), torch.zeros(2, 1, 12, 12), model, training=mode, opset_version=14,
                              do_constant_folding=not training, input_names=["x"], output_names=["y"],
                              dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
            flags = ["--epochs=3", "--batch=16", f"--output={out}", "--lr=0.02"]
            done = train(model, path, *flags)
            losses, _ = steps(done)
            assert losses[-1] < 0.7 * losses[0], losses
            assert ("batch" in done.err) != training or training, done.err
            written = out.read_bytes()
            assert train(model, path, *flags).code == 0 and out.read_bytes() == written
            onnx.checker.check_model(onnx.load(out), full_check=True)
            before, after = weights(model), weights(out)
            if training:
                assert not numpy.array_equal(before["1.running_var"], after["1.running_var"])
            local("infer", out, f"--input={path}/x.npy", f"--output={folder}/all.npy")
            numpy.save(f"{folder}/x1.npy", x[:1])
            local("infer", out, f"--input={folder}/x1.npy", f"--output={folder}/one.npy")
            both, one = numpy.load(f"{folder}/all.npy"), numpy.load(f"{folder}/one.npy")
            assert abs(both[:1] - one).max() < 1e-5 * abs(both).max()
            theirs = ort.run(out, {"x": x})
            assert theirs is None or abs(theirs["y"] - both).max() < 1e-4 * abs(both).max()
            again, _ = steps(train(out, path, "--batch=16"))
            assert again[0] < 0.7 * losses[0], again


def test_bad_input():
    with tempfile.TemporaryDirectory() as folder:
        model, path, cut = new(folder), data(folder, 30), pathlib.Path(folder, "cut.onnx")
        bad = data(folder, 30, name="bad", labels=numpy.arange(30) % 5)
        other = data(folder, 30, size=(1, 10, 12), name="other")
        no_path_model(cut)
        # 33 pictures in eights leave one, which ResNet-18 makes one value per channel of.
        deep, large = new(folder, "resnet18", "1x12x12", name="deep.onnx"), data(folder, 33, name="large")
        flat = pathlib.Path(folder, "flat")
        flat.mkdir()
        numpy.save(flat / "x.npy", numpy.zeros((8, 6), "f4"))
        numpy.save(flat / "y.npy", numpy.zeros((8, 1), "f4"))
        nothing = pathlib.Path(folder, "nothing")
        nothing.mkdir()
        numpy.save(nothing / "x.npy", numpy.zeros((8, 1, 12, 12), "f4"))
        for m, d, args, text in (
                (model, bad, [], "4"), (model, other, [], "10"), (model, nothing, [], "labels"),
                (cut, flat, ["--loss=mse"], "cuts it"), (model, path, ["--lr=1e30", "--epochs=9"], "step "),
                (model, path, ["--loss=mse"], "--loss=mse"), (model, path, ["--val=0.5", "--val=7"], "--val=7"),
                (model, path / "none", [], "none"), (model, path, ["--augment=swirl"], "swirl"),
                (model, path, ["--freeze=*"], "frozen"), (deep, large, ["--batch=8"], "batch-norm"),
                (deep, large, ["--batch=8", "--bn=frozen", "--microbatch=0"], "microbatch")):
            done = train(m, d, *args, ok=False)
            assert done.code in (1, 2) and text in done.err, (args, done.err)
        nan = train(model, path, "--lr=1e30", "--epochs=9", ok=False).err
        assert "the loss is NaN" in nan and "first that is not finite" in nan, nan
        for args, text in ((["--optimizer=lion"], "lion"), (["--lr=fast"], "--lr=fast"), (["--momentum=1"], "momentum"),
                           (["--schedule=jump"], "--schedule=jump"), (["--schedule=step:0"], "--schedule"), (["--loss=x"], "'x'"),
                           (["--resume"], "--checkpoint"), (["--optimizer=adamw", "--momentum=0.5"], "--momentum"),
                           (["--nesterov", "--momentum=0"], "nesterov"), (["--warmup=99"], "--warmup=99"),
                           (["--accumulate=2", "--microbatch=2"], "--accumulate"), (["--label-smoothing=1"], "label_smoothing"),
                           (["--clip-norm=-1"], "--clip-norm=-1"), (["--beta1=0.5"], "--beta1"),
                           (["--checkpoint-every=5"], "--checkpoint=DIR"), (["--augment=pad-crop"], "pad-crop: a number"),
                           (["--freeze=no.*"], "'no.*'"), (["--schedule=cosine:1"], "lr")):
            done = train(model, path, *args, ok=False)
            work = args[0].startswith(("--warmup", "--freeze"))  # the model or the data decide
            assert done.code == (1 if work else 2) and text in done.err and not done.out, (args, done.err)


def test_bad_data_is_named():
    """The sample, the file and the place; and before the first step where that can be known."""
    with tempfile.TemporaryDirectory() as folder:
        model, path = new(folder), data(folder, 30)
        x = numpy.load(path / "x.npy")
        x[17, 0, 3, 3] = numpy.nan
        numpy.save(path / "x.npy", x)
        err = train(model, path, "--batch=8", ok=False).err
        assert "the loss is NaN" in err and "input of sample 17" in err and "--lr" not in err, err
        none = data(folder, 30, labels=numpy.full(30, -100), name="none")
        empty, short = data(folder, 0, name="empty"), data(folder, 30, labels=numpy.zeros(20), name="short")
        cifar = pathlib.Path(folder, "cifar")
        cifar.mkdir()
        record = numpy.zeros((40, 3073), "u1")
        record[:, 1:] = numpy.random.default_rng(1).integers(0, 256, (40, 3072))
        for k in range(1, 6):
            record[7, 0] = 11 if k == 3 else 0
            record.tofile(cifar / f"data_batch_{k}.bin")
        colour = new(folder, "mlp", "3x32x32", 10, "colour.onnx")
        wide = data(folder, 30, (1, 12, 14), name="wide")
        done = train(model, data(folder, 30, name="fine"), f"--val={wide}", ok=False)
        assert "float32[1,12,12] in training and float32[1,12,14] in validation" in done.err, done.err
        for m, d, text in ((model, none, "every label is -100"), (model, empty, "empty: the data set is empty"),
                           (model, short, "y.npy is int64[20]"), (colour, cifar, "cifar: data_batch_3.bin: label 11 at offset 21511")):
            done = train(m, d, "--batch=8", ok=False)
            assert done.code == 1 and text in done.err and not done.out, done.err


def test_results_have_a_place():
    """A path that cannot be written is refused before the work; a last checkpoint without room takes nothing along."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, kept = new(folder), data(folder, 64), pathlib.Path(folder, "kept")
        for flag in (f"--output={folder}/none/t.onnx", f"--output={folder}", f"--plot={model}/loss.svg"):
            done = train(model, path, flag, ok=False)
            assert done.code == 1 and flag in done.err and not done.out, (flag, done.out, done.err)
        train(model, path, f"--checkpoint={kept}")
        size, = (p.stat().st_size for p in (kept / "checkpoint").iterdir())
        whole, out = pathlib.Path(folder, "w.onnx"), pathlib.Path(folder, "t.onnx")
        flags = ["local", "train", model, f"--data={path}", "--threads=1"]
        yoke(*flags, f"--output={whole}")

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 4, size * 3 // 4))

        done = subprocess.run([harness.BIN / "yoke", *map(str, flags), f"--checkpoint={folder}/full", f"--output={out}"],
                              capture_output=True, text=True, preexec_fn=limit)
        assert done.returncode == 1 and "--checkpoint=" in done.stderr, done.stderr
        assert out.read_bytes() == whole.read_bytes()


def test_flags_are_one_table():
    """What says how a training goes is the same for one device and for a fleet, with the same limits, word for word."""
    def flags(*command):
        rows = yoke(*command, "--help").out.split("\n\n", 1)[1].replace("\n      ", " ").strip().split("\n")
        return {re.match(r" *--([a-z-]+)", row).group(1): row.strip() for row in rows}
    one, fleet = flags("local", "train"), flags("train")
    places = {"source", "split", "codec", "pin", "size"}  # of a fleet
    here = {"accumulate", "checkpoint", "threads", "backend", "backend-timeout-ms", "backend-check-every", "tune"}
    own = {"data", "val", "resume"}  # both have them, and mean their own
    assert set(fleet) - set(one) == places and set(one) - set(fleet) == here, (sorted(fleet), sorted(one))
    assert all(one[k] == fleet[k] for k in set(one) & set(fleet) - own)
    with tempfile.TemporaryDirectory() as folder:
        model, path = new(folder), data(folder, 8)
        for flag in ("--lr=-1", "--momentum=1", "--schedule=step", "--clip-norm=-1", "--epochs=0", "--label-smoothing=2",
                     "--warmup=-1", "--loss=x"):
            a = local("train", model, f"--data={path}", flag, ok=False)
            b = yoke("--rest=http://127.0.0.1:1", "train", "m", f"--data={path}", flag, ok=False)
            assert a.code == b.code == 2 and a.err.replace("local train", "train") == b.err, (a.err, b.err)


def fashion(kind, epochs, floor, *args):
    if not FASHION.is_dir():
        raise Skip("dataset-fashion-mnist is not installed")
    with tempfile.TemporaryDirectory() as folder:
        model, out = new(folder, kind, "1x28x28", 10), pathlib.Path(folder, "t.onnx")
        done = local("train", model, f"--data={FASHION}", f"--epochs={epochs}", "--json", f"--output={out}", *args, timeout=3600)
        accuracy = done.last()["test_accuracy"]
        assert accuracy >= floor, accuracy
        pixels = [a for a in args if a.startswith(("--mean", "--std"))]
        batch = local("batch", out, f"--data={FASHION}", "--json", *pixels).last()
        assert abs(batch["accuracy"] - accuracy) < 1e-3, (batch, accuracy)
        print(f"    {kind}: {accuracy:.4f}, {done.last()['images_per_s']:.0f} images/s")


def test_fashion_mnist():
    fashion("cnn", 3 if FULL else 1, 0.90 if FULL else 0.85, "--batch=64", "--optimizer=sgd")


@full
def test_fashion_mnist_resnet():
    fashion("resnet-small", 5, 0.92, "--batch=64", "--schedule=cosine", "--lr=0.1", "--nesterov", "--weight-decay=5e-4",
            "--mean=0.2860", "--std=0.3530", "--augment=flip")
