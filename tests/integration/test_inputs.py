"""Models with several inputs and outputs, named dimensions, and tensors that are not by sample."""
import numpy
import onnx
from onnx import TensorProto, helper

from harness import Fleet, local
from test_main import n_nodes, same_file, two_agents


def several(path):
    """y = relu(x @ w) * s, z = mean of t over its sequence, h2 = h + 1: x and t by sample, s and h whole."""
    random = numpy.random.default_rng(7)
    w = random.standard_normal((6, 5)).astype("float32")
    f = TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Relu", ["xw"], ["r"]),
             helper.make_node("Mul", ["r", "s"], ["y"]), helper.make_node("ReduceMean", ["t"], ["z"], axes=[1], keepdims=0),
             helper.make_node("Add", ["h", "one"], ["h2"])]
    graph = helper.make_graph(
        nodes, "several",
        [helper.make_tensor_value_info("x", f, ["N", 6]), helper.make_tensor_value_info("t", f, ["N", "L", 3]),
         helper.make_tensor_value_info("s", f, []), helper.make_tensor_value_info("h", f, [2, "L"])],
        [helper.make_tensor_value_info("y", f, ["N", 5]), helper.make_tensor_value_info("z", f, ["N", 3]),
         helper.make_tensor_value_info("h2", f, [2, "L"])],
        [helper.make_tensor("w", f, w.shape, w.tobytes(), raw=True), helper.make_tensor("one", f, [], [1.0])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return w


def test_several_inputs_and_outputs():
    with Fleet() as fleet:
        two_agents(fleet, emulate=False)
        model = fleet.dir / "several.onnx"
        w = several(model)
        fleet.add_model(model, "several")
        random = numpy.random.default_rng(8)
        data = {"x": random.standard_normal((4, 6)), "t": random.standard_normal((4, 9, 3)), "s": numpy.array(2.5),
                "h": random.standard_normal((2, 9))}
        flags = []
        for name, value in data.items():
            data[name] = value = value.astype("float32")
            numpy.save(fleet.dir / f"{name}.npy", value)
            flags.append(f"--input={name}={fleet.dir / name}.npy")
        want = {"y": numpy.maximum(data["x"].astype("float64") @ w, 0) * 2.5, "z": data["t"].astype("float64").mean(axis=1),
                "h2": data["h"].astype("float64") + 1}
        alone = fleet.dir / "alone"
        local("infer", model, *flags, f"--output={alone}/")
        plan = fleet.plan("several", "--job=infer", "--source=pc", "--size=L=9", "--batch=4")
        nodes = n_nodes(plan)
        for cut in range(1, nodes):
            two = fleet.forced(plan, [("pc", [[0, cut - 1]]), ("phone", [[cut, nodes - 1]])])
            out = fleet.dir / f"out{cut}"
            fleet.yoke("infer", "several", *flags, "--source=pc", f"--plan={two}", f"--output={out}/")
            for name, value in want.items():
                got = numpy.load(out / f"{name}.npy")
                assert got.shape == value.shape, (name, got.shape)
                assert abs(got - value).max() <= 1e-5 * abs(value).max(), name
                assert same_file(out / f"{name}.npy", alone / f"{name}.npy"), f"{name} differs from the unsplit run"
        rows = fleet.list("jobs")
        status, outputs = fleet.request("GET", f"/v1/jobs/{rows[0]['job']}/outputs")
        assert status == 200 and [o["name"] for o in outputs] == ["y", "z", "h2"], outputs
        status, answer = fleet.request("GET", f"/v1/jobs/{rows[0]['job']}/output?name=q")
        assert status == 404 and "'q'" in str(answer), answer


def test_wrong_inputs_are_named():
    with Fleet() as fleet:
        fleet.agent("pc")
        model = fleet.dir / "several.onnx"
        several(model)
        fleet.add_model(model, "m")
        numpy.save(fleet.dir / "x.npy", numpy.zeros((4, 6), "float32"))
        numpy.save(fleet.dir / "t.npy", numpy.zeros((4, 9, 3), "float32"))
        numpy.save(fleet.dir / "t3.npy", numpy.zeros((3, 9, 3), "float32"))
        numpy.save(fleet.dir / "s.npy", numpy.float32(1))
        numpy.save(fleet.dir / "s64.npy", numpy.float64(1))
        numpy.save(fleet.dir / "h.npy", numpy.zeros((2, 9), "float32"))
        numpy.save(fleet.dir / "h8.npy", numpy.zeros((2, 8), "float32"))

        def infer(**files):
            flags = [f"--input={k}={fleet.dir / v}.npy" for k, v in files.items()]
            return fleet.yoke("infer", "m", *flags, ok=False)

        good = {"x": "x", "t": "t", "s": "s", "h": "h"}
        assert infer(**good).code == 0
        for change, words in (({"h": None}, ("'h'",)), ({"t": "t3"}, ("samples",)), ({"h": "h8"}, ("'L'",)),
                              ({"s": "s64"}, ("float64", "'s'"))):
            files = {k: v for k, v in {**good, **change}.items() if v}
            answer = infer(**files)
            assert answer.code == 1 and all(w in answer.err for w in words), (change, answer.err)
        answer = fleet.yoke("plan", "m", ok=False)
        assert answer.code == 1 and "--size=L=" in answer.err, answer.err
        answer = fleet.yoke("plan", "m", "--size=Q=3", ok=False)
        assert answer.code == 1 and "'Q'" in answer.err, answer.err
        fleet.yoke("plan", "m", "--size=L=9")


def test_bytes_are_pixels_or_bytes():
    """uint8 data is pixels for a float input and bytes for a uint8 input, here and in the fleet alike."""
    with Fleet() as fleet:
        fleet.agent("pc")
        f, b = TensorProto.FLOAT, TensorProto.UINT8
        random = numpy.random.default_rng(9)
        for name, dtype, dims, nodes in (
                ("pixels", f, ["N", 1, 4, 5], [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)]),
                ("bytes", b, ["N", 4, 5, 3], [helper.make_node("Cast", ["x"], ["c"], to=f),
                                              helper.make_node("ReduceMean", ["c"], ["y"], axes=[1, 2], keepdims=0)])):
            graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", dtype, dims)],
                                      [helper.make_tensor_value_info("y", f, ["N", None])])
            model = fleet.dir / f"{name}.onnx"
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(model))
            x = random.integers(0, 256, (3, 4, 5) if name == "pixels" else (3, 4, 5, 3), dtype="uint8")
            numpy.save(fleet.dir / "x.npy", x)
            want = x.reshape(3, 1, 4, 5).mean(axis=(2, 3)) / 255 if name == "pixels" else x.mean(axis=(1, 2))
            fleet.add_model(model, name)
            fleet.yoke("infer", name, f"--input={fleet.dir}/x.npy", f"--output={fleet.dir}/fleet.npy")
            local("infer", model, f"--input={fleet.dir}/x.npy", f"--output={fleet.dir}/local.npy")
            assert same_file(fleet.dir / "fleet.npy", fleet.dir / "local.npy"), name
            assert abs(numpy.load(fleet.dir / "local.npy") - want).max() < 1e-4, name


def test_samples_that_depend_on_each_other():
    """Such a batch goes through whole: another microbatch would give other answers, and is refused."""
    with Fleet() as fleet:
        two_agents(fleet, emulate=False)
        f = TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), helper.make_node("Sub", ["x", "m"], ["y"])],
            "centred", [helper.make_tensor_value_info("x", f, ["N", 6])], [helper.make_tensor_value_info("y", f, ["N", 6])])
        model = fleet.dir / "centred.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(model))
        x = numpy.random.default_rng(3).standard_normal((16, 6)).astype("float32")
        numpy.save(fleet.dir / "x.npy", x)
        fleet.add_model(model, "centred")
        arguments = ("batch", "centred", f"--data={fleet.dir}/x.npy", "--batch=8", f"--output={fleet.dir}/y.npy")
        fleet.yoke(*arguments)
        want = numpy.concatenate([part - part.mean(axis=0) for part in (x[:8], x[8:])])
        assert abs(numpy.load(fleet.dir / "y.npy") - want).max() < 1e-5
        refused = fleet.yoke(*arguments, "--microbatch=2", ok=False)
        assert refused.code == 1 and "ReduceMean" in refused.err and "batch of 8" in refused.err, refused.err
        refused = local("batch", model, f"--data={fleet.dir}/x.npy", "--batch=8", "--microbatch=2", ok=False)
        assert refused.code == 1 and "ReduceMean" in refused.err, refused.err


def test_batch_baked_into_a_model():
    """Exported with a batch of 4 in a Reshape: it runs with 4 samples, in the fleet as alone."""
    with Fleet() as fleet:
        fleet.agent("pc")
        f = TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Relu", ["r"], ["y"])], "baked",
            [helper.make_tensor_value_info("x", f, ["N", 6])], [helper.make_tensor_value_info("y", f, [4, 2, 3])],
            [helper.make_tensor("s", TensorProto.INT64, [3], [4, 2, 3])])
        model = fleet.dir / "baked.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(model))
        x = numpy.random.default_rng(4).standard_normal((4, 6)).astype("float32")
        numpy.save(fleet.dir / "x.npy", x)
        fleet.add_model(model, "baked")
        fleet.yoke("infer", "baked", f"--input={fleet.dir}/x.npy", f"--output={fleet.dir}/y.npy")
        assert abs(numpy.load(fleet.dir / "y.npy") - numpy.maximum(x.reshape(4, 2, 3), 0)).max() == 0
