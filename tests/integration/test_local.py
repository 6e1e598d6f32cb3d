"""Commands that need no scheduler: check, ops, several inputs and outputs."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest.mock

import harness
from harness import FMNIST, MODELS, local, yoke
from run import Skip

DATA = pathlib.Path("/usr/share/libonnx-testdata/data")
CHECK = pathlib.Path(__file__).resolve().parent.parent / "conformance" / "check.py"


def counts(line):
    return [int(part.split()[0]) for part in line.split(", ")]


def judge(data, dump):
    done = subprocess.run([sys.executable, CHECK, data, dump], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout.strip().split("\n")[-1], done.stdout


def test_check_agrees_with_onnx():
    if not DATA.is_dir():
        raise Skip("no libonnx-testdata")
    # Five data sets of `node` are wrong (tests/conformance/test_onnx_node.c says how); they fail here and in check.py.
    for name, floor, wrong in (("node", 900, 5), ("pytorch-operator", 35, 0), ("pytorch-converted", 82, 0), ("simple", 15, 0)):
        with tempfile.TemporaryDirectory() as dump:
            done = local("check", DATA / name, f"--dump={dump}", ok=False)
            last = done.out.strip().split("\n")[-1]
            passed, failed, skipped = counts(last)
            assert passed >= floor and failed == wrong and done.code == (1 if wrong else 0), last
            code, theirs, text = judge(DATA / name, dump)
            assert code == 0 and theirs == last, text
            for line in done.out.split("\n"):
                assert not line.startswith("skipped") or line.partition(": ")[2], f"no reason: {line}"


def test_check_notices_wrong_answers():
    """Expected outputs that were changed fail, here and in check.py; the exit code says so."""
    import onnx
    from onnx import numpy_helper
    if not DATA.is_dir():
        raise Skip("no libonnx-testdata")
    with tempfile.TemporaryDirectory() as folder:
        data, dump = pathlib.Path(folder, "data"), pathlib.Path(folder, "dump")
        changes = {"test_add": lambda a: a + 2e-3 * abs(a) + 1e-3, "test_relu": lambda a: a.astype("f8"),
                   "test_softmax_axis_0": lambda a: a[None], "test_argmax_default_axis_example": lambda a: a + 1,
                   "test_sub": lambda a: a * (1 + 1e-5)}
        for test, change in changes.items():
            data_set = data / test / "test_data_set_0"
            data_set.mkdir(parents=True)
            for path in (DATA / "node" / test / "test_data_set_0").iterdir():
                (data_set / path.name).write_bytes(path.read_bytes())
            (data / test / "model.onnx").write_bytes((DATA / "node" / test / "model.onnx").read_bytes())
            output = data_set / "output_0.pb"
            array = numpy_helper.to_array(onnx.TensorProto.FromString(output.read_bytes()))
            output.write_bytes(numpy_helper.from_array(change(array)).SerializeToString())
        done = local("check", data, f"--dump={dump}", "--json", ok=False)
        rows = [json.loads(line) for line in done.out.strip().split("\n")]
        assert done.code == 1 and rows[-1] == {"passed": 1, "failed": 4, "skipped": 0}, done.out
        verdicts = {row["test"]: row for row in rows[:-1]}
        assert verdicts["test_sub"]["verdict"] == "passed", verdicts
        assert "float64" in verdicts["test_relu"]["reason"] and "expected" in verdicts["test_add"]["reason"], verdicts
        code, last, text = judge(data, dump)
        assert code == 0 and last == "1 passed, 4 failed, 0 skipped", text
        (data / "test_sub" / "test_data_set_0" / "output_0.pb").write_bytes(b"\xff\xff")
        (data / "test_add" / "model.onnx").write_bytes(b"no model")
        done = local("check", data, "--json", ok=False)
        assert done.code == 1 and json.loads(done.out.strip().split("\n")[-1])["failed"] == 5, done.out


def test_ops_lists_what_the_standard_says():
    import onnx.defs
    first = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            first[schema.name] = min(schema.since_version, first.get(schema.name, 99))
    rows = local("ops", "--json").json()
    assert len(rows) > 100
    for row in rows:
        if row["domain"] == "ai.onnx":
            low, high = map(int, row["opsets"].split("-"))
            assert high == 17 and low == max(6, first[row["op"]]), row
        assert set(row) >= {"op", "domain", "opsets", "ref", "simd", "blas"}, row
    kinds = {row["op"]: row for row in rows}
    assert kinds["Conv"]["blas"] != "-" and kinds["Conv"]["ref"] == "ref", kinds["Conv"]
    text = local("ops").out
    assert all(row["op"] in text for row in rows)


def test_several_inputs_and_outputs():
    import numpy as np
    import onnx
    from onnx import TensorProto as T, helper
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Mul", ["a", "b"], ["out/m"]),
             helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", T.FLOAT, [2], [1, 2]))]
    inputs = [helper.make_tensor_value_info(name, T.FLOAT, ["n", 3]) for name in "ab"]
    outputs = [helper.make_tensor_value_info(name, T.FLOAT, None) for name in ("s", "out/m", "k")]
    with tempfile.TemporaryDirectory() as folder:
        model, a, b, short = (os.path.join(folder, name) for name in ("m.onnx", "a.npy", "b.npy", "short.npy"))
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs),
                                    opset_imports=[helper.make_opsetid("", 13)]), model)
        x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[2, 2, 2], [-1, 0, 1]])
        np.save(a, x), np.save(b, y), np.save(short, y[:1])
        done = local("infer", model, f"--input=b={b}", f"--input=a={a}", f"--output={folder}/all/", "--json")
        assert [json.loads(line)["shape"] for line in done.out.strip().split("\n")] == [[2, 3], [2, 3], [2]], done.out
        assert (np.load(f"{folder}/all/s.npy") == x + y).all() and (np.load(f"{folder}/all/out_m.npy") == x * y).all()
        assert (np.load(f"{folder}/all/k.npy") == [1, 2]).all()
        local("infer", model, f"--input=a={a}", f"--input=b={b}", f"--output=out/m={folder}/m.npy")
        assert (np.load(f"{folder}/m.npy") == x * y).all()
        done = local("bench", model, f"--input=a={a}", f"--input=b={b}", "--repeat=2", "--json").last()
        assert done["batch"] == 2 and done["ms"] > 0, done
        for arguments, says in (((f"--input=a={a}",), "input 'b' is missing"),
                                ((f"--input={a}",), "2 inputs, 'a', 'b'"),
                                ((f"--input=a={a}", f"--input=b={b}", f"--input=c={b}"), "no input 'c'"),
                                ((f"--input=a={a}", f"--input=b={short}"), "dimension 0 of input 'b' is 'n'"),
                                ((f"--input=a={a}", f"--input=b={b}", f"--output={folder}/y.npy"), "has 3 outputs"),
                                ((f"--input=a={a}", f"--input=b={model}"), "m.onnx")):
            done = local("infer", model, *arguments, ok=False)
            assert done.code == 1 and says in done.err, done.err


def test_resident_memory_of_a_run():
    """Weights in place: what a run holds is weights and memory plan, plus 16 MiB and 10 %."""
    model = MODELS and MODELS / "resnet34_224.onnx"
    if not model or not model.exists():
        raise Skip("no golden models (YOKE_MODELS)")
    for batch in (1, 8):
        done = subprocess.run([harness.BIN / "bench_open", model, str(batch)], capture_output=True, text=True, timeout=600)
        last = done.stdout.strip().split("\n")[-1]
        assert done.returncode == 0 and last.endswith(": inside"), done.stdout + done.stderr


def test_bench_of_sizes_that_depend_on_data():
    import numpy as np
    import onnx
    from onnx import TensorProto as T, helper
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Transpose", ["i"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", T.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", T.INT64, None)])
    with tempfile.TemporaryDirectory() as folder:
        model, x = os.path.join(folder, "m.onnx"), os.path.join(folder, "x.npy")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), model)
        np.save(x, np.float32([[0, 1, 0], [2, 0, 3]]))
        assert local("bench", model, "--batch=4", "--repeat=2", "--ops", "--json").last()["batch"] == 4
        local("infer", model, f"--input={x}", f"--output={folder}/y.npy")
        assert (np.load(f"{folder}/y.npy") == [[0, 1], [1, 0], [1, 2]]).all()


def test_bench_shows_where_the_time_goes():
    import xml.dom.minidom
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "run.svg")
        done = local("bench", FMNIST, "--batch=2", "--repeat=3", "--ops", "--json", f"--timeline={picture}").last()
        nodes, classes = done["nodes"], done["classes"]
        assert sum(k["nodes"] for k in classes) == len(nodes) and abs(sum(k["share_frac"] for k in classes) - 1) < 1e-9
        assert abs(sum(n["ms"] for n in nodes) - sum(k["ms"] for k in classes)) < 1e-9
        assert all("@" in n["form"] and n["ms"] >= 0 and n["bytes"] >= 0 for n in nodes), nodes
        assert done["peak_gflops"] > 0 and all(0 <= k["peak_frac"] < 10 for k in classes), done
        spans = [r for r in xml.dom.minidom.parse(picture).getElementsByTagName("rect") if r.getAttribute("class") == "b"]
        assert len(spans) == len(nodes)
        text = local("bench", FMNIST, "--repeat=1", "--ops").out
        assert "peak_frac" in text and "share_frac" in text and "GFLOP/s" in text, text
        done = local("bench", FMNIST, "--repeat=1", "--timeline=/nowhere/x.svg", ok=False)
        assert done.code == 1 and "/nowhere" in done.err and "GFLOP/s" not in done.out, done.err
        done = local("bench", FMNIST, "--repeat=1", "--json").last()
        assert "peak_gflops" not in done and done["ms"] > 0, done  # not measured without --ops


def test_bench_of_a_fixed_batch():
    import onnx
    from onnx import TensorProto as T, helper
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", T.FLOAT, [4, 3])],
                              [helper.make_tensor_value_info("y", T.FLOAT, [4, 3])])
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "m.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), model)
        for flags in ((), ("--batch=4",)):
            assert local("bench", model, "--repeat=1", "--json", *flags).last()["batch"] == 4
        done = local("bench", model, "--repeat=1", "--batch=3", ok=False)
        assert done.code == 1 and "takes 4 at a time" in done.err, done.err


def test_sizes_of_named_dimensions():
    import numpy as np
    import onnx
    from onnx import TensorProto as T, helper
    graph = helper.make_graph([helper.make_node("GlobalAveragePool", ["x"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", T.FLOAT, ["n", 3, "height", "width"])],
                              [helper.make_tensor_value_info("y", T.FLOAT, None)])
    with tempfile.TemporaryDirectory() as folder:
        model, x = os.path.join(folder, "m.onnx"), os.path.join(folder, "x.npy")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), model)
        np.save(x, np.ones((2, 3, 5, 7), "f4"))
        done = local("bench", model, "--repeat=1", "--ops", "--batch=2", "--size=height=30", "--size=width=20", "--json")
        assert done.last()["nodes"][0]["bytes"] == 4 * (2 * 3 * 30 * 20 + 6), done.out
        local("infer", model, f"--input={x}", "--size=height=5", f"--output={folder}/y.npy")
        for arguments, says in ((("bench", "--size=height=30"), "'width', whose size is not known: --size=width=N"),
                                (("bench",), "--size=height=N, or --input"),
                                (("bench", "--size=depth=3", "--size=height=3"), "no dimension of that name; it has"),
                                (("bench", "--size=n=3"), "--batch"), (("bench", "--size=height=0"), "NAME=N"),
                                (("bench", "--size=height"), "NAME=N"), (("bench", "--size=height="), "NAME=N"),
                                (("infer", f"--input={x}", "--size=height=6"), "in the inputs it is 5"),
                                (("bench", f"--input={x}", "--size=width=6"), "in the inputs it is 7")):
            done = local(arguments[0], model, *arguments[1:], ok=False)
            assert done.code == (2 if says == "NAME=N" else 1) and says in done.err, done.err
        os.mkdir(f"{folder}/data")
        np.save(f"{folder}/data/x.npy", np.ones((4, 3, 6, 6), "f4")), np.save(f"{folder}/data/y.npy", np.zeros(4, "i8"))
        assert local("batch", model, f"--data={folder}/data", "--batch=2", "--json").last()["samples"] == 4
        done = local("batch", model, f"--data={folder}/data", "--size=width=5", ok=False)
        assert done.code == 1 and "--size=width=5" in done.err, done.err


def test_training_forms_by_measurement():
    """Measured once, with backward nodes and weights that change; then the same forms, so the same bytes."""
    import numpy as np
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}):
        np.save(f"{folder}/x.npy", np.random.default_rng(1).random((24, 1, 28, 28)).astype("f4"))
        np.save(f"{folder}/y.npy", np.arange(24) % 10)
        yoke("model", "new", "cnn", "--classes=10", "--input=1x28x28", "--seed=1", f"{folder}/m.onnx")
        losses = []
        for turn, flags in enumerate(([], ["--tune"], ["--tune"])):
            done = local("train", f"{folder}/m.onnx", f"--data={folder}", "--epochs=2", "--batch=8", "--val=none", "--json",
                         f"--output={folder}/{turn}.onnx", *flags)
            losses.append([json.loads(line)["loss"] for line in done.out.split("\n") if '"step"' in line])
        assert losses[1] == losses[2] and all(abs(a - b) <= 1e-4 * b for a, b in zip(*losses[:2])), losses
        assert pathlib.Path(f"{folder}/1.onnx").read_bytes() == pathlib.Path(f"{folder}/2.onnx").read_bytes()
        (kept,) = pathlib.Path(folder, "yoke").glob("forms-*.json")
        assert "measured forms" not in done.err and json.loads(kept.read_text())["forms"]


def test_forms_by_measurement():
    import numpy as np
    with tempfile.TemporaryDirectory() as folder:
        cache, x = os.path.join(folder, "cache"), os.path.join(folder, "x.npy")
        np.save(x, np.random.default_rng(1).random((2, 1, 28, 28)).astype("f4"))
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            local("infer", FMNIST, f"--input={x}", f"--output={folder}/plain.npy")
            assert not os.path.exists(cache)
            want = np.load(f"{folder}/plain.npy")
            for turn in range(4):
                done = local("infer", FMNIST, f"--input={x}", "--tune", f"--output={folder}/tuned.npy")
                got = np.load(f"{folder}/tuned.npy")
                assert abs(got - want).max() <= 1e-5 * abs(want).max(), turn
                (kept,) = pathlib.Path(cache, "yoke").glob("forms-*.json")
                text = kept.read_text()
                forms = json.loads(text)["forms"]
                assert forms and all("@" in f for f in forms.values()), forms
                if turn == 0:
                    first, age = text, kept.stat().st_mtime_ns
                if turn == 1:
                    assert text == first and kept.stat().st_mtime_ns == age, "measured again"
                    kept.write_text("{")  # damaged: said, and measured again
                if turn == 2:
                    assert "measured forms are not read" in done.err, done.err
                    kept.write_text(json.dumps({"device": json.loads(text)["device"], "forms": {k: "no@form" for k in forms}}))
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
