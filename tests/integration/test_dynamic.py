"""Graphs whose outputs' shapes depend on data, whose outputs are inputs or constants, and whose subgraphs hold weights."""
import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from harness import Fleet, local
from test_main import n_nodes, same_file, two_agents

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def info(name, dims, dtype=F):
    return helper.make_tensor_value_info(name, dtype, dims)


def save(path, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def finder(path, batch="N"):
    """r = relu(x); found = where r > 1 (of a size that depends on x); picked = r at those places."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Greater", ["r", "one"], ["g"]),
             helper.make_node("NonZero", ["g"], ["found"]), helper.make_node("Transpose", ["found"], ["at"]),
             helper.make_node("GatherND", ["r", "at"], ["picked"])]
    return save(path, nodes, [info("x", [batch, 16])], [info("r", [batch, 16]), info("found", [2, None], I64),
                                                       info("picked", [None])], [("one", numpy.float32(1))])


def test_outputs_whose_shape_depends_on_data():
    """Whole on either agent (its outputs cross a connection or not), and cut where that is allowed; also nothing found."""
    with Fleet() as fleet:
        two_agents(fleet, emulate=False)
        model = finder(fleet.dir / "m.onnx")
        fleet.add_model(model, "m")
        x = numpy.random.default_rng(3).standard_normal((5, 16)).astype("float32")
        numpy.save(fleet.dir / "some.npy", x)
        numpy.save(fleet.dir / "none.npy", numpy.minimum(x, 0.5))
        numpy.save(fleet.dir / "all.npy", abs(x) + 1.5)
        plan = fleet.plan("m", "--job=infer", "--source=pc", "--batch=5", "--explain")
        nodes = n_nodes(plan)
        for name in ("some", "none", "all", "some"):
            data = fleet.dir / f"{name}.npy"
            r = numpy.maximum(numpy.load(data), 0)
            want = {"r": r, "found": numpy.array(numpy.nonzero(r > 1)), "picked": r[r > 1]}
            places = [[("pc", [[0, nodes - 1]])], [("phone", [[0, nodes - 1]])]]
            places += [[("phone", [[0, at]]), ("pc", [[at + 1, nodes - 1]])] for at in range(nodes - 1)]
            places += [[("pc", [[0, at]]), ("phone", [[at + 1, nodes - 1]])] for at in range(nodes - 1)]
            crossed = 0
            for stages in places:
                for codec in (None, "fp16") if len(stages) == 1 else (None,):
                    out = fleet.dir / "out"
                    forced = fleet.forced(plan, stages)
                    if codec:  # what has no known size goes as it is
                        cut = '"cuts": [{"pipeline": 0, "from": 0, "to": -1, "codec": "fp16"}]'
                        forced.write_text(forced.read_text().replace('"cuts": []', cut))
                    done = fleet.yoke("infer", "m", f"--input={data}", "--source=pc", f"--plan={forced}",
                                      *(["--codec=fp16"] if codec else []), f"--output={out}/", ok=False)
                    if done.code and "cannot cross" in done.err and len(stages) == 2:
                        continue
                    assert done.code == 0, (stages, codec, done.err)
                    crossed += len(stages) == 2
                    for key, value in want.items():
                        got = numpy.load(out / f"{key}.npy")
                        assert got.shape == value.shape and got.dtype == value.dtype, (key, got.shape, got.dtype)
                        if codec and stages[0][0] == "phone" and key == "r":
                            assert numpy.allclose(got, value, rtol=2e-3)
                        else:
                            assert numpy.array_equal(got, value), (name, stages, codec, key)
            assert crossed >= 2, f"{crossed} cuts of {nodes} nodes"
        done = fleet.yoke("plan", "m", "--job=infer", "--source=pc", "--batch=5", "--microbatch=2", ok=False)
        assert done.code == 1 and "batch of 5, not 2" in done.err, done.err
        two = fleet.plan("m", "--job=infer", "--source=pc", "--batch=5")
        two["microbatch"] = 2
        path = fleet.forced(two, [("pc", [[0, nodes - 1]])])
        done = fleet.yoke("infer", "m", f"--input={fleet.dir / 'some.npy'}", f"--plan={path}", f"--output={out}/", ok=False)
        assert done.code == 1 and "batch of 5, not 2" in done.err, done.err
        done = fleet.yoke("batch", "m", f"--data={fleet.dir / 'some.npy'}", f"--output={fleet.dir / 'y.npy'}", ok=False)
        assert done.code == 1, done.out
        assert "'found'" in done.err and "depends on data" in done.err, done.err


def test_fixed_batch_with_outputs_that_depend_on_data():
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.add_model(finder(fleet.dir / "m.onnx", batch=1), "m")
        x = numpy.random.default_rng(3).standard_normal((2, 16)).astype("float32")
        numpy.save(fleet.dir / "one.npy", x[:1])
        numpy.save(fleet.dir / "two.npy", x)
        fleet.yoke("infer", "m", f"--input={fleet.dir / 'one.npy'}", f"--output={fleet.dir / 'out'}/")
        r = numpy.maximum(x[:1], 0)
        assert numpy.array_equal(numpy.load(fleet.dir / "out/picked.npy"), r[r > 1])
        done = fleet.yoke("infer", "m", f"--input={fleet.dir / 'two.npy'}", f"--output={fleet.dir / 'out'}/", ok=False)
        assert done.code == 1 and "'found'" in done.err and "not 2 samples" in done.err, done.err


def test_outputs_that_nobody_makes():
    """An output that is an input, a small constant, and one that is content of its own (a blob)."""
    with Fleet() as fleet:
        two_agents(fleet, emulate=False)
        big = numpy.random.default_rng(4).standard_normal((3, 700)).astype("float32")
        small = numpy.array([7, -8], "int64")
        model = save(fleet.dir / "m.onnx", [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Exp", ["y"], ["z"])],
                     [info("x", ["N", 6]), info("k", ["N"], I64)],
                     [info("z", ["N", 6]), info("x", ["N", 6]), info("big", [3, 700]), info("small", [2], I64),
                      info("k", ["N"], I64)], [("big", big), ("small", small)])
        fleet.add_model(model, "m")
        x = numpy.random.default_rng(5).standard_normal((4, 6)).astype("float32")
        k = numpy.arange(4, dtype="int64")
        numpy.save(fleet.dir / "x.npy", x)
        numpy.save(fleet.dir / "k.npy", k)
        flags = [f"--input=x={fleet.dir / 'x.npy'}", f"--input=k={fleet.dir / 'k.npy'}"]
        plan = fleet.plan("m", "--job=infer", "--source=pc", "--batch=4", "--explain")
        nodes = n_nodes(plan)
        local("infer", model, *flags, f"--output={fleet.dir / 'alone'}/")
        for stages in ([("pc", [[0, nodes - 1]])], [("phone", [[0, nodes - 1]])], [("phone", [[0, 0]]), ("pc", [[1, nodes - 1]])]):
            out = fleet.dir / "out"
            fleet.yoke("infer", "m", *flags, "--source=pc", f"--plan={fleet.forced(plan, stages)}", f"--output={out}/")
            for name, want in (("x", x), ("big", big), ("small", small), ("k", k)):
                got = numpy.load(out / f"{name}.npy")
                assert got.dtype == want.dtype and numpy.array_equal(got, want), name
            assert same_file(out / "z.npy", fleet.dir / "alone/z.npy")


def test_weights_of_subgraphs():
    """Both branches of an If hold a matrix that is content of its own; a stage takes them along."""
    with Fleet() as fleet:
        two_agents(fleet, emulate=False)
        random = numpy.random.default_rng(6)
        w = {name: random.standard_normal((32, 40)).astype("float32") for name in ("a", "b")}

        def branch(name):
            return helper.make_graph([helper.make_node("MatMul", ["h", name], [f"y{name}"])], f"g{name}", [],
                                     [info(f"y{name}", None)], [numpy_helper.from_array(w[name], name)])
        nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
                 helper.make_node("Greater", ["s", "zero"], ["c"]),
                 helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b")),
                 helper.make_node("Neg", ["y"], ["z"])]
        model = save(fleet.dir / "m.onnx", nodes, [info("x", ["N", 32])], [info("z", None)], [("zero", numpy.float32(0))])
        fleet.add_model(model, "m")
        plan = fleet.plan("m", "--job=infer", "--source=pc", "--batch=3", "--explain")
        n = n_nodes(plan)
        done = 0
        for sign in (1, -1):
            x = (sign * abs(random.standard_normal((3, 32))) + 0.1 * random.standard_normal((3, 32))).astype("float32")
            numpy.save(fleet.dir / "x.npy", x)
            whole = fleet.dir / "whole"
            one = fleet.forced(plan, [("pc", [[0, n - 1]])], name="one.json")
            local("infer", model, f"--input={fleet.dir / 'x.npy'}", f"--plan={one}", f"--output={whole}/", "--threads=1")
            want = -(numpy.maximum(x, 0).astype("float64") @ w["a" if x.sum() > 0 else "b"])
            got = numpy.load(whole / "z.npy")
            assert got.shape == want.shape and abs(got - want).max() <= 1e-5 * abs(want).max()
            for at in range(n - 1):
                for left, right in (("pc", "phone"), ("phone", "pc")):
                    path = fleet.forced(plan, [(left, [[0, at]]), (right, [[at + 1, n - 1]])])
                    out = fleet.dir / "out"
                    answer = fleet.yoke("infer", "m", f"--input={fleet.dir / 'x.npy'}", "--source=pc", f"--plan={path}",
                                        f"--output={out}/", ok=False)
                    if answer.code:
                        assert "cannot cross" in answer.err, answer.err
                        continue
                    assert same_file(out / "z.npy", whole / "z.npy"), at
                    done += 1
        assert done >= 4, done
