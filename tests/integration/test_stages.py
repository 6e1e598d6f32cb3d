"""Stages of any form: an agent with the first and the last stage of a pipeline, and stages that are sets of nodes of a graph
with branches. What comes out has the bits of one device."""
import json

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

import harness
from harness import FMNIST, Fleet

WIDTH = 384


def _model(path):
    """Two branches from one stem, joined by a sum that the stem is part of too, and a head; both ends are narrow. The second
    output is made half-way."""
    random = numpy.random.default_rng(5)
    nodes, weights = [], []

    def dense(name, x, rows, columns):
        weights.append(numpy_helper.from_array((random.standard_normal((rows, columns)) / rows ** 0.5).astype("float32"), f"w_{name}"))
        nodes.append(helper.make_node("MatMul", [x, f"w_{name}"], [f"m_{name}"], name=f"m_{name}"))
        nodes.append(helper.make_node("Relu", [f"m_{name}"], [name], name=name))
        return name

    stem = dense("stem", "x", 16, WIDTH)
    ends = []
    for branch in "ab":
        at = stem
        for i in range(3):
            at = dense(f"{branch}{i}", at, WIDTH, WIDTH)
        ends.append(at)
    nodes.append(helper.make_node("Add", ends, ["joined"], name="joined"))
    nodes.append(helper.make_node("Add", ["joined", stem], ["all"], name="all"))
    dense("head", "all", WIDTH, WIDTH)
    dense("y", "head", WIDTH, 16)
    graph = helper.make_graph(nodes, "branches", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16]),
                               helper.make_tensor_value_info("joined", TensorProto.FLOAT, ["N", WIDTH])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _fleet(fleet):
    fleet.agent("phone", emulate={"gflops": 0.2})
    fleet.agent("pc")
    fleet.wait_links(("pc", "phone"), ("phone", "pc"))
    _model(fleet.dir / "m.onnx")
    fleet.add_model(fleet.dir / "m.onnx", "m")
    x = fleet.dir / "x.npy"
    numpy.save(x, numpy.random.default_rng(9).standard_normal((6, 16)).astype("float32"))
    return x


def _infer(fleet, x, plan, *args):
    outputs = [(name, fleet.dir / f"{name}.npy") for name in ("y", "joined")]
    fleet.yoke("infer", "m", f"--input={x}", f"--plan={plan}", *(f"--output={name}={path}" for name, path in outputs), *args)
    return [path.read_bytes() for _, path in outputs]


def test_first_and_last_on_the_source():
    with Fleet() as fleet:
        x = _fleet(fleet)
        plan = fleet.plan("m", "--job=infer", "--batch=6", "--source=phone")
        n = plan["pipelines"][0]["stages"][-1]["nodes"][-1][1] + 1
        one = _infer(fleet, x, fleet.forced(plan, [("phone", [[0, n - 1]])], name="one.json"))
        assert numpy.load(fleet.dir / "y.npy").any() and numpy.load(fleet.dir / "joined.npy").shape == (6, WIDTH)
        for first, last in ((1, n - 1), (2, n - 3), (5, 6)):
            stages = [("phone", [[0, first - 1]]), ("pc", [[first, last - 1]]), ("phone", [[last, n - 1]])]
            around = fleet.forced(plan, stages)
            assert _infer(fleet, x, around, "--pin=first,last") == one, (first, last)
            small = json.loads(around.read_text())
            small["microbatch"] = 1
            around.write_text(json.dumps(small))
            alone = fleet.forced(small, [("phone", [[0, n - 1]])], name="one.json")
            assert _infer(fleet, x, around) == _infer(fleet, x, alone), (first, last)
        # asked for both pins, the planner itself goes around: the phone is slow
        for job in (["--job=infer", "--batch=6"], ["--job=batch", "--batch=12", "--objective=throughput"]):
            own = fleet.plan("m", *job, "--source=phone", "--pin=first,last")
            agents = [stage["agent"] for stage in own["pipelines"][0]["stages"]]
            assert agents == ["phone", "pc", "phone"], own["explanation"]
            path = fleet.dir / "own.json"
            path.write_text(json.dumps(own))
            alone = fleet.forced(own, [("phone", [[0, n - 1]])], name="one.json")
            assert _infer(fleet, x, path) == _infer(fleet, x, alone), job


def test_sets_of_nodes():
    with Fleet() as fleet:
        x = _fleet(fleet)
        plan = fleet.plan("m", "--job=infer", "--batch=6", "--source=phone")
        n = plan["pipelines"][0]["stages"][-1]["nodes"][-1][1] + 1
        one = _infer(fleet, x, fleet.forced(plan, [("phone", [[0, n - 1]])], name="one.json"))
        assert n == 11  # a layer is one node: the stem, three of branch a, three of b, two sums, two of the head
        for stages in ([("phone", [[0, 3]]), ("pc", [[4, 6]]), ("phone", [[7, 10]])],
                       [("pc", [[0, 0], [4, 6]]), ("phone", [[1, 3], [7, 10]])],
                       [("phone", [[0, 0], [4, 6]]), ("pc", [[1, 3], [7, 10]])],
                       [("phone", [[0, 1], [4, 4]]), ("pc", [[2, 3], [5, 6]]), ("phone", [[7, 10]])]):
            assert _infer(fleet, x, fleet.forced(plan, stages)) == one, stages


def test_cloud_cost():
    """As little compute on class cloud as the deadline allows: by the command and by REST."""
    with Fleet() as fleet:
        fleet.agent("phone", "--class=phone", emulate={"gflops": 0.2})
        fleet.agent("box", "--class=cloud", emulate={"gflops": 4})
        fleet.wait_links(("box", "phone"), ("phone", "box"))
        _model(fleet.dir / "m.onnx")
        fleet.add_model(fleet.dir / "m.onnx", "m")
        asked = ("--job=infer", "--batch=6", "--source=phone")
        alone = fleet.forced(fleet.plan("m", *asked), [("phone", [[0, 10]])])
        slow = fleet.plan("m", *asked, f"--plan={alone}")["predicted"]["step_ms"]
        x = fleet.dir / "x.npy"
        numpy.save(x, numpy.zeros((6, 16), "float32"))
        # A request with a deadline avoids devices that have to fetch weights first: both have all of them.
        for path in (alone, fleet.forced(fleet.plan("m", *asked), [("box", [[0, 10]])], name="box.json")):
            fleet.yoke("infer", "m", f"--input={x}", "--source=phone", f"--plan={path}",
                       *(f"--output={name}={fleet.dir / name}.npy" for name in ("y", "joined")))
        harness.wait_for("weights on both", lambda: all(
            stage["fetch_bytes"] == 0 for path in (alone, fleet.dir / "box.json")
            for stage in fleet.plan("m", *asked, f"--plan={path}")["pipelines"][0]["stages"]))
        cloud = []
        for part in (1.5, 0.7, 0.4):
            plan = fleet.plan("m", *asked, "--objective=cloud-cost", f"--deadline-ms={int(slow * part)}")
            assert plan["objective"] == "cloud-cost" and plan["predicted"]["step_ms"] <= slow * part, plan["explanation"]
            cloud.append(plan["predicted"]["cloud_ms"])
        assert cloud[0] == 0 and 0 < cloud[1] < cloud[2], cloud
        deadline = f"--deadline-ms={int(slow * 20)}"
        fleet.yoke("infer", "m", f"--input={x}", "--source=phone", "--objective=cloud-cost", deadline,
                   *(f"--output={name}={fleet.dir / name}.npy" for name in ("y", "joined")))
        done = fleet.yoke("plan", "m", *asked, "--objective=cloud-cost", "--deadline-ms=1", ok=False)
        assert done.code == 1 and "deadline" in done.err and "1 ms" in done.err, done.err
        done = fleet.yoke("plan", "m", *asked, "--objective=cloud-cost", ok=False)
        assert done.code != 0 and "--deadline-ms" in done.err, done.err
        status, answer = fleet.request("POST", "/v1/plan", {"kind": "infer", "model": "m", "objective": "cloud-cost"})
        assert status == 400 and "deadline_ms" in answer["text"], (status, answer)


def test_other_jobs_count():
    """While a job runs on an agent, a plan for another counts what it takes."""
    with Fleet() as fleet:
        fleet.agent("phone", emulate={"gflops": 0.05})
        fleet.agent("pc", emulate={"gflops": 0.05})
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        asked = ("--job=infer", "--batch=64", "--source=phone")
        first = fleet.plan("fmnist", *asked)
        n = first["pipelines"][0]["stages"][-1]["nodes"][-1][1] + 1
        on_pc = fleet.forced(first, [("pc", [[0, n - 1]])], name="pc.json")

        def step():
            return fleet.plan("fmnist", *asked, f"--plan={on_pc}")["predicted"]["step_ms"]

        free = step()
        alone = fleet.forced(fleet.plan("fmnist", "--job=batch", "--batch=64", "--source=pc"), [("pc", [[0, n - 1]])])
        job = fleet.spawn("batch", "fmnist", f"--data={harness.DATASETS}/fashion-mnist", f"--plan={alone}")
        try:
            harness.wait_for("the job to run", lambda: any(j["state"] == "running" for j in fleet.list("jobs")), 60)
            assert 1.8 * free < step() < 2.2 * free  # one of two gets half
            own = fleet.plan("fmnist", *asked)
            assert [s["agent"] for s in own["pipelines"][0]["stages"]] == ["phone"], own["explanation"]
            for j in fleet.list("jobs"):
                fleet.yoke("cancel", j["job"])
            harness.wait_for("pc to be free", lambda: step() < 1.1 * free)
        finally:
            job.kill()
            job.wait(timeout=30)
