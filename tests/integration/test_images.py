"""Pictures in, classes out: the same numbers as torchvision makes, from one machine and from a fleet."""
import gzip
import json
import pathlib
import random
import tempfile

import harness
from harness import FMNIST, SEED, Fleet, local

GOLDEN = harness.ROOT / "tests/golden/images"


def fashion():
    import numpy
    folder = pathlib.Path(harness.DATASETS) / "fashion-mnist"
    images = numpy.frombuffer(gzip.open(folder / "t10k-images-idx3-ubyte.gz").read(), "u1")[16:].reshape(-1, 28, 28)
    labels = numpy.frombuffer(gzip.open(folder / "t10k-labels-idx1-ubyte.gz").read(), "u1")[8:]
    return images, labels


def class_folders(root, count):
    """The first images of Fashion-MNIST as ROOT/CLASS/NUMBER.png; returns their order as a data set."""
    from PIL import Image
    images, labels = fashion()
    for i in range(count):
        folder = root / f"class{labels[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(folder / f"{i:05d}.png")
    return sorted(range(count), key=lambda i: (labels[i], i))


def negative(path, height="h", width="w", channels=3, dtype=None, nhwc=False):
    """A model that gives its input back with the other sign."""
    import onnx
    from onnx import TensorProto, helper
    dims = ["n", height, width, channels] if nhwc else ["n", channels, height, width]
    info = [helper.make_tensor_value_info(name, dtype or TensorProto.FLOAT, dims) for name in ("x", "y")]
    op = "Neg" if dtype is None else "Identity"
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def torchvision_input(path, resize=None, crop=None, mean=None, std=None, kind="bilinear", gray=False):
    from PIL import Image
    from torchvision import transforms as T
    steps = [T.Resize(resize, T.InterpolationMode(kind))] if resize else []
    steps += [T.CenterCrop(crop)] if crop else []
    steps += [T.ToTensor()]
    steps += [T.Normalize(mean, std)] if mean else []
    return T.Compose(steps)(Image.open(path).convert("L" if gray else "RGB")).numpy()[None]


def check_input(model, path, flags, want, at_most=1e-6):
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "y.npy"
        local("infer", model, f"--input={path}", f"--output={out}", *flags)
        got = -numpy.load(out)
    assert got.shape == want.shape, f"{path} {flags}: {got.shape}, torchvision {want.shape}"
    difference = float(abs(got - want).max())
    assert difference <= at_most, f"{path} {flags}: differs by {difference}"


def test_input_is_torchvisions():
    """Random sizes, up and down, of a JPEG and a PNG, through the command."""
    import numpy
    from PIL import Image
    rng, numbers = random.Random(SEED), numpy.random.default_rng(SEED)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = negative(folder / "neg.onnx")
        for i in range(24):
            height, width = rng.randint(1, 300), rng.randint(1, 300)
            path = folder / f"{i}.{'jpg' if i % 2 else 'png'}"
            noise = numbers.integers(0, 256, (max(height // 8, 1), max(width // 8, 1), 3)).astype("u1")
            Image.fromarray(noise).resize((width, height), Image.BICUBIC).save(path)
            kind = rng.choice(("bilinear", "bicubic", "nearest"))
            side, tall, crop = rng.randint(1, 120), rng.randint(1, 260), rng.randint(1, 150)
            if i % 3:
                check_input(model, path, (f"--resize={tall}x{side}", f"--interpolation={kind}"),
                            torchvision_input(path, (tall, side), kind=kind))
            else:
                check_input(model, path, (f"--resize={side}", f"--crop={crop}", f"--interpolation={kind}",
                                          "--mean=0.485,0.456,0.406", "--std=0.229,0.224,0.225"),
                            torchvision_input(path, side, crop, mean, std, kind))
        photo = folder / "photo.jpg"
        Image.fromarray(numbers.integers(0, 256, (30, 41, 3)).astype("u1")).resize((531, 400), Image.BICUBIC).save(photo)
        usual = torchvision_input(photo, 256, 224, mean, std)
        check_input(model, photo, ("--preset=imagenet",), usual)
        settings = folder / "p.json"
        settings.write_text(json.dumps({"resize": 256, "crop": 224, "mean": mean, "std": std}))
        check_input(model, photo, (f"--preprocess={settings}",), usual)
        check_input(model, photo, (f"--preprocess={settings}", "--crop=100"), torchvision_input(photo, 256, 100, mean, std))
        fixed = negative(folder / "fixed.onnx", 64, 48)
        said = local("infer", fixed, f"--input={photo}").err
        assert "resized to 64x48" in said, said
        check_input(fixed, photo, (), torchvision_input(photo, (64, 48)))
        last = negative(folder / "last.onnx", 64, 48, nhwc=True)
        check_input(last, photo, (), torchvision_input(photo, (64, 48)).transpose(0, 2, 3, 1))
        gray = negative(folder / "gray.onnx", 64, 48, channels=1)
        check_input(gray, photo, (), torchvision_input(photo, (64, 48), gray=True))


def test_classes_are_shown():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        class_folders(root / "set", 20)
        images, labels = fashion()
        picture = next((root / "set" / f"class{labels[0]}").iterdir())
        names = root / "names.txt"
        names.write_text("\n".join(f"kind {i}" for i in range(10)) + "\n")
        lines = local("infer", FMNIST, f"--input={picture}", f"--labels={names}").out.strip().split("\n")
        assert "best of 10 classes" in lines[1] and len(lines) == 7, lines
        assert lines[2].split()[0] == str(labels[0]) and lines[2].endswith(f"kind {labels[0]}"), lines
        scores = [float(line.split()[1]) for line in lines[2:]]
        assert scores == sorted(scores, reverse=True), scores
        out = root / "y.npy"
        assert "best of" not in local("infer", FMNIST, f"--input={picture}", f"--output={out}").out
        names.write_text("one\ntwo\n")
        bad = local("infer", FMNIST, f"--input={picture}", f"--labels={names}", ok=False)
        assert bad.code == 1 and "2 names" in bad.err and "10 classes" in bad.err, bad.err


def test_folder_is_the_data_set():
    """Class folders of PNG give what the IDX files give, in another order."""
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        order = class_folders(root / "set", 400)
        images, labels = fashion()
        (root / "npy").mkdir()
        numpy.save(root / "npy" / "x.npy", images[order])
        numpy.save(root / "npy" / "y.npy", labels[order])
        results = []
        for name in ("set", "npy"):
            out = root / f"{name}-y.npy"
            last = local("batch", FMNIST, f"--data={root / name}", "--batch=64", f"--output={out}", "--json").last()
            results.append((last["samples"], last["accuracy"], out.read_bytes()))
        assert results[0] == results[1], [r[:2] for r in results]
        assert results[0][0] == 400 and results[0][1] > 0.85


def test_bad_pictures():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        cut = root / "cut.jpg"
        cut.write_bytes((GOLDEN / "wide.jpg").read_bytes()[:600])
        (root / "empty.png").write_bytes(b"")
        (root / "text.jpg").write_text("not a picture")
        (root / "folder").mkdir()
        cases = ((f"--input={cut}", "cut.jpg: the JPEG is cut"), (f"--input={root}/empty.png", "empty.png: the file is empty"),
                 (f"--input={root}/text.jpg", "text.jpg: neither JPEG nor PNG"),
                 (f"--input={root}/folder", "no .jpg, .jpeg or .png"), (f"--input={root}/none.jpg", "none.jpg: No such file"))
        for argument, part in cases:
            bad = local("infer", FMNIST, argument, ok=False)
            assert bad.code == 1 and part in bad.err, (argument, bad.code, bad.err)
        picture = GOLDEN / "half.jpg"
        for flag, part in (("--resize=0", "1 to 16384"), ("--crop=5y", "height x width"), ("--mean=1,2", "2 values"),
                           ("--std=0", "above 0"), ("--preset=best", "imagenet"), ("--preprocess=/nowhere.json", "/nowhere.json"),
                           ("--interpolation=best", "bilinear, nearest, bicubic"), ("--resize=30", "takes 28x28")):
            bad = local("infer", FMNIST, f"--input={picture}", flag, ok=False)
            assert bad.code in (1, 2) and part in bad.err, (flag, bad.code, bad.err)
        bad = local("batch", FMNIST, f"--data={harness.DATASETS}/fashion-mnist", "--resize=28", ok=False)
        assert bad.code == 1 and "no JPEG or PNG" in bad.err, bad.err


def two_agents(fleet, root):
    fleet.agent("pc", f"--data-root={root}")
    fleet.agent("phone", "--class=phone")
    fleet.wait_links(("pc", "phone"), ("phone", "pc"))


def test_folder_over_two_agents():
    """A folder under a data root, and the same uploaded: as on one machine, to the bit."""
    with Fleet() as fleet:
        root = fleet.dir / "data"
        class_folders(root / "fashion", 400)
        two_agents(fleet, root)
        fleet.add_model(FMNIST, "fmnist")
        plan = fleet.plan("fmnist", "--job=batch", "--objective=throughput", "--source=pc", "--batch=64")
        nodes = max(last for p in plan["pipelines"] for s in p["stages"] for _, last in s["nodes"]) + 1
        two = fleet.forced(plan, [("pc", [[0, nodes // 2 - 1]]), ("phone", [[nodes // 2, nodes - 1]])])
        reference, output = fleet.dir / "reference.npy", fleet.dir / "out.npy"
        want = local("batch", FMNIST, f"--data={root}/fashion", "--batch=64", f"--plan={two}", f"--output={reference}",
                     "--threads=1", "--json").last()
        for data, extra in (("fashion", ("--source=pc",)), (root / "fashion", ())):
            output.unlink(missing_ok=True)
            last = fleet.yoke("batch", "fmnist", f"--data={data}", "--batch=64", f"--plan={two}", f"--output={output}", "--json",
                              *extra).last()
            assert (last["samples"], last["accuracy"]) == (400, want["accuracy"]), (last, want)
            assert output.read_bytes() == reference.read_bytes(), f"{data}: differs from the unsplit run"


def test_preprocessing_is_kept_with_the_model():
    import numpy
    from PIL import Image
    with Fleet() as fleet:
        root = fleet.dir / "data"
        (root / "photos").mkdir(parents=True)
        numbers = numpy.random.default_rng(SEED)
        for i in range(5):
            noise = numbers.integers(0, 256, (9, 12 + i, 3)).astype("u1")
            Image.fromarray(noise).resize((100 + 20 * i, 90), Image.BICUBIC).save(root / "photos" / f"{i}.jpg")
        photo = root / "photos" / "3.jpg"
        two_agents(fleet, root)
        model, settings, output = negative(fleet.dir / "neg.onnx", 32, 32), fleet.dir / "p.json", fleet.dir / "y.npy"
        mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
        settings.write_text(json.dumps({"resize": 40, "crop": 32, "mean": mean, "std": std}))
        fleet.yoke("model", "add", model, "--name=neg", f"--preprocess={settings}")
        fleet.yoke("model", "add", model, "--name=plain")

        def input_of(*args, name="neg"):
            said = fleet.yoke("infer", name, f"--input={photo}", f"--output={output}", *args).err
            return -numpy.load(output), said

        def close(got, want):
            assert got.shape == want.shape and float(abs(got - want).max()) <= 1e-6, (got.shape, want.shape)

        for restarted in (False, True):
            kept = {row["model"]: row["preprocess"] for row in fleet.list("models")}
            assert json.loads(kept["neg"]) == json.loads(settings.read_text()) and kept["plain"] is None, kept
            close(input_of()[0], torchvision_input(photo, 40, 32, mean, std))
            if not restarted:
                fleet.kill("yoked")
                fleet.start_yoked()
                fleet.wait_alive("pc", "phone")
        close(input_of("--resize=50")[0], torchvision_input(photo, 50, 32, mean, std))
        got, said = input_of("--preprocess=none")
        close(got, torchvision_input(photo, (32, 32)))
        assert "resized to 32x32" in said, said
        close(input_of("--preset=imagenet", "--crop=32", name="plain")[0],
              torchvision_input(photo, 256, 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

        # a data set that the agent reads: the model's own, flags over it, and nothing
        want = [torchvision_input(p, 40, 32, mean, std) for p in sorted((root / "photos").iterdir())]
        fleet.yoke("batch", "neg", "--data=photos", "--source=pc", "--batch=2", f"--output={output}")
        close(-numpy.load(output), numpy.concatenate(want))
        fleet.yoke("batch", "neg", "--data=photos", "--source=pc", "--batch=2", f"--output={output}", "--interpolation=bicubic",
                   "--mean=0.5")
        want = [torchvision_input(p, 40, 32, (0.5,) * 3, std, "bicubic") for p in sorted((root / "photos").iterdir())]
        close(-numpy.load(output), numpy.concatenate(want))
        job = fleet.yoke("batch", "plain", "--data=photos", "--source=pc", "--batch=2", "--json").last()["job"]
        events = fleet.request("GET", f"/v1/jobs/{job}/events?cursor=0&wait_ms=0")[1]["events"]
        assert any("resized to 32x32" in e["text"] for e in events), events
        fleet.yoke("model", "add", model, "--name=plain", "--mean=0.5", "--std=0.25")  # again, under the same name
        close(input_of(name="plain")[0], torchvision_input(photo, (32, 32), None, (0.5,) * 3, (0.25,) * 3))
        bad = fleet.yoke("model", "add", model, "--name=x", "--preprocess=/nowhere.json", ok=False)
        assert bad.code == 1 and "/nowhere.json" in bad.err, bad.err


def test_infer_shows_classes():
    with Fleet() as fleet:
        root = fleet.dir / "data"
        class_folders(root, 20)
        two_agents(fleet, root)
        fleet.add_model(FMNIST, "fmnist")
        picture = next(iter(sorted((root / f"class{fashion()[1][0]}").iterdir())))
        names = fleet.dir / "names.txt"
        names.write_text("".join(f"kind {i}\n" for i in range(10)))
        with harness.Watch(fleet) as watch:
            got = harness.yoke(f"--rest={watch.url}", "infer", "fmnist", f"--input={picture}", f"--labels={names}")
        got = got.out.strip().split("\n")
        want = local("infer", FMNIST, f"--input={picture}", f"--labels={names}").out.strip().split("\n")
        assert got[-6:] == want[-6:] and "best of 10" in got[-6], (got, want)
        assert len([a for a in watch.asked if "/output?" in a]) == 1, watch.asked  # it comes once


def test_bad_folders_on_an_agent():
    with Fleet() as fleet:
        root = fleet.dir / "data"
        for name in ("good", "cut", "link", "none", "mixed"):
            (root / name).mkdir(parents=True)
        wide = (GOLDEN / "wide.jpg").read_bytes()
        (root / "cut" / "a.jpg").write_bytes(wide)
        (root / "cut" / "b.jpg").write_bytes(wide[:700])
        (fleet.dir / "secret.jpg").write_bytes(wide)
        (root / "link" / "a.jpg").symlink_to(fleet.dir / "secret.jpg")
        (root / "mixed" / "a.jpg").write_bytes(wide)
        (root / "mixed" / "b.jpg").write_bytes((GOLDEN / "tall.jpg").read_bytes())
        two_agents(fleet, root)
        fleet.yoke("model", "add", negative(fleet.dir / "neg.onnx", 41, 60), "--name=neg")
        for name, part in (("cut", "cut: b.jpg: the JPEG is cut"), ("link", "a.jpg: leads out of the data root"),
                           ("none", "no .jpg, .jpeg or .png"), ("absent", "no data 'absent'")):
            bad = fleet.yoke("batch", "neg", f"--data={name}", "--source=pc", "--batch=1", ok=False)
            assert bad.code == 1 and part in bad.err, (name, bad.err)
        bad = fleet.yoke("batch", "neg", "--data=mixed", "--source=pc", "--batch=1", "--resize=41", ok=False)
        assert bad.code == 1 and "b.jpg: becomes 83x41" in bad.err and "--crop" in bad.err, bad.err
        fleet.yoke("batch", "neg", "--data=mixed", "--source=pc", "--batch=1")  # and the agent goes on
