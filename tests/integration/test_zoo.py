"""Models that others made, through the daemons (tests/golden/make_zoo.py, make_public.py: folders in $YOKE_ZOO): each is
added, planned, run as planned, whole, and over two agents at ten cuts, those that the planner offers first. Every output
has the bits of the unsplit run and is as near to the golden one as tests/conformance/test_zoo.c asks."""
import os
import pathlib
import re
import subprocess

import numpy
import onnx
from onnx import numpy_helper

from harness import ROOT, Fleet, local
from run import Skip, full
from test_main import n_nodes, same_file

ZOO = pathlib.Path(os.environ.get("YOKE_ZOO", ROOT / "build/zoo"))
CUTS = 10


def make(script, *names):
    """The folders of these models, made now if they are not there."""
    if not names or not all((ZOO / name / "stamp").exists() for name in names):
        done = subprocess.run(["/usr/bin/python3", ROOT / "tests/golden" / script, ZOO, *names], capture_output=True, text=True,
                              timeout=3600)
        if done.returncode:
            raise AssertionError(f"{script}: {done.stdout[-500:]}{done.stderr[-500:]}")
        if not all((ZOO / name / "stamp").exists() for name in names):
            raise Skip(done.stdout.strip()[-300:] or f"{script} made nothing")


def tensor(path):
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


class Golden:
    def __init__(self, name):
        self.name, self.folder = name, ZOO / name
        self.path = self.folder / "model.onnx"
        graph = onnx.load(self.path).graph
        weights = {w.name for w in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in weights]
        self.outputs = [o.name for o in graph.output]
        bound = self.folder / "bound"
        self.bound = float(bound.read_text()) if bound.exists() else 1e-5
        self.sets = len(list(self.folder.glob("test_data_set_*")))

    def flags(self, fleet, k):
        """--input of data set k, and what a plan for it needs."""
        given, sizes, batch_name = [], {}, None
        for i, value in enumerate(self.inputs):
            array = tensor(self.folder / f"test_data_set_{k}/input_{i}.pb")
            path = fleet.dir / f"{self.name}-{k}-{i}.npy"
            numpy.save(path, array)
            given.append(f"--input={value.name}={path}")
            names = [None if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_dim{d}"
                     for d, dim in enumerate(value.type.tensor_type.shape.dim)]
            sizes.update((name, array.shape[d]) for d, name in enumerate(names) if name)
            if i == 0:
                batch, batch_name = array.shape[0], names[0]
            if batch_name in names[1:]:  # a dimension like others: not by sample
                batch_name = None
        sizes.pop(batch_name, None)  # --batch says it
        return given, [f"--size={name}={n}" for name, n in sizes.items()] + [f"--batch={batch}"]

    def compare(self, folder, k, what):
        for i, name in enumerate(self.outputs):
            got = numpy.load(file_of(folder, name))
            want = tensor(self.folder / f"test_data_set_{k}/output_{i}.pb")
            assert got.shape == want.shape and got.dtype == want.dtype, (what, name, got.shape, got.dtype, want.shape)
            if not want.size or numpy.array_equal(got, want):
                continue
            a, b = got.astype("float64"), want.astype("float64")
            error = abs(a - b).max() / abs(b).max()
            assert error <= self.bound, f"{self.name}, {what}: output '{name}' is {error:.1e} from the golden one"


def file_of(folder, name):
    """infer --output=FOLDER/ writes one file for each output."""
    path = folder / f"{name}.npy"
    return path if path.exists() else folder / (re.sub(r"[^\w.-]", "_", name) + ".npy")


def offered(fleet, model, *flags):
    """Where plans and their alternatives cut the model in two, for one request and for many (where a split pays)."""
    ends = []
    flags = [f for f in flags if not f.startswith("--batch")]
    for job in (("--job=infer", "--batch=1"), ("--job=batch", "--objective=throughput", "--batch=8")):
        text = fleet.yoke("plan", model, "--source=pc", "--explain", *job, *flags).out
        ends += re.findall(r"alternative \S+ (?:\d+-)?(\d+) \| \S+ [\d-]+,", text)
        ends += re.findall(r"stage 0 on .* nodes (?:\d+-)?(\d+) ", text)
    return list(dict.fromkeys(int(end) for end in ends))


def spread(nodes):
    """Every place between two nodes, the even parts first."""
    first = [nodes * (k + 1) // (CUTS + 1) - 1 for k in range(CUTS)]
    rest = sorted(set(range(nodes - 1)) - set(first), key=lambda at: min(abs(at - f) for f in first))
    return [at for at in first + rest if 0 <= at < nodes - 1]


def check_model(name, cuts=CUTS, most_refused=60):
    golden = Golden(name)
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.agent("phone", "--class=phone")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(golden.path, "m")
        for k in range(golden.sets):
            given, _ = golden.flags(fleet, k)
            out = fleet.dir / f"planned{k}"
            fleet.yoke("infer", "m", *given, f"--output={out}/")
            golden.compare(out, k, f"data set {k} as planned")
        given, sizes = golden.flags(fleet, 0)
        plan = fleet.plan("m", "--job=infer", "--source=pc", *sizes)
        nodes = n_nodes(plan)
        whole = fleet.dir / "whole"
        one = fleet.forced(plan, [("pc", [[0, nodes - 1]])], name="one.json")
        local("infer", golden.path, *given, f"--plan={one}", "--threads=1", f"--output={whole}/")
        golden.compare(whole, 0, "yoke local, unsplit")
        asked = [end for end in offered(fleet, "m", *sizes) if end < nodes - 1]
        tried, run, refused = set(), 0, 0
        for at in [None, *asked, *spread(nodes)]:
            if at in tried or run == cuts + 1 or refused == most_refused:
                continue
            tried.add(at)
            stages = [("pc", [[0, nodes - 1]])] if at is None else [("phone", [[0, at]]), ("pc", [[at + 1, nodes - 1]])]
            if at is not None and run % 2:
                stages = [("pc", stages[0][1]), ("phone", stages[1][1])]
            out = fleet.dir / "out"
            done = fleet.yoke("infer", "m", *given, "--source=pc", f"--plan={fleet.forced(plan, stages)}", f"--output={out}/",
                              ok=False)
            if done.code and "cannot cross" in done.err and at not in asked and at is not None:
                refused += 1  # a value whose size depends on data: the planner offers no such cut
                continue
            assert done.code == 0, f"{name}, cut after node {at} of {nodes}: {done.err[-600:]}"
            for output in golden.outputs:
                assert same_file(file_of(out, output), file_of(whole, output)), \
                    f"{name}, cut after node {at} of {nodes}: '{output}' differs from the unsplit run"
            run += 1
        assert run > 1 or nodes == 1, f"{name}: no cut of {nodes} nodes runs"
        print(f"    {name}: {nodes} nodes, {run - 1} cuts equal, {len(asked)} of them offered, {refused} refused", flush=True)


def test_recurrent_net_with_control_flow():
    make("make_public.py", "silero_vad_legacy", "silero_vad_v5")
    check_model("silero_vad_legacy")
    check_model("silero_vad_v5")


def test_named_height_and_width():
    make("make_public.py", "ppocr_v4_rec")
    check_model("ppocr_v4_rec", cuts=5)


def test_architecture_of_torchvision():
    make("make_zoo.py", "squeezenet1_1")
    check_model("squeezenet1_1", cuts=5)


@full
def test_all_models():
    """Everything there is, each in a fleet of its own."""
    make("make_zoo.py")
    try:
        make("make_public.py")
    except Skip as why:
        print(f"    {why}")
    failed = []
    for folder in sorted(ZOO.iterdir()):
        if (folder / "stamp").exists():
            try:
                check_model(folder.name)
            except AssertionError as why:
                failed.append(folder.name)
                print(f"    {folder.name} FAILED: {why}", flush=True)
    assert not failed, failed
