"""What the pipeline benchmarks share: a fleet of two agents with a core each, a model to train, and forced cuts."""
import json
import os
import pathlib
import sqlite3
import statistics
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402

CLASSES = 10
TICKS = os.sysconf("SC_CLK_TCK")


def processor_ms(process):
    """What a process has computed so far, all its threads."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / TICKS


class Run:
    """One training: losses, milliseconds of its steps but the first, and processor milliseconds by agent of all of it."""

    def __init__(self, lines, used):
        steps = [line for line in lines if "step" in line]
        self.losses = [s["loss"] for s in steps]
        self.job = lines[-1]["job"]
        self.ms = [s["ms"] for s in steps[1:]]
        self.used = used


class Training:
    """`with Training(...) as t`: agents a and b on a core each, with data sets of `steps` batches of each of these sizes."""

    def __init__(self, kind="resnet34", size="3x224x224", microbatch=2, steps=3, batches=(16, 48), emulate=None):
        self.kind, self.size, self.microbatch, self.steps, self.batches = kind, size, microbatch, steps, batches
        self.emulate = emulate or {}

    def __enter__(self):
        self.fleet = harness.Fleet().__enter__()
        try:
            self.root = self.fleet.dir / "root"
            for batch in self.batches:
                self.make_data(batch)
            for core, name in enumerate("ab"):
                self.start(name, core, self.emulate.get(name))
            self.model = self.fleet.dir / "model.onnx"
            harness.yoke("model", "new", self.kind, f"--classes={CLASSES}", f"--input={self.size}", "--seed=1", self.model)
            self.fleet.add_model(self.model, "m")
            self.learn()
        except BaseException:
            self.fleet.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *why):
        return self.fleet.__exit__(*why)

    def start(self, name, core, emulate=None):
        self.fleet.agent(name, f"--data-root={self.root}", "--threads=1", emulate=emulate, taskset=core)
        if name != "a":
            self.fleet.wait_links(("a", name), (name, "a"))

    def stop(self, name):
        self.fleet.kill(name, harness.signal.SIGTERM)
        del self.fleet.agents[name]

    def make_data(self, batch):
        folder = self.root / f"d{batch}"
        folder.mkdir(parents=True)
        n = batch * self.steps
        rng = numpy.random.default_rng(1)
        dims = [int(d) for d in self.size.split("x")]
        numpy.save(folder / "x.npy", rng.standard_normal((n, *dims), dtype="float32"))
        numpy.save(folder / "y.npy", rng.integers(0, CLASSES, n))

    def flags(self, batch, source):
        return (f"--source={source}", f"--batch={batch}", f"--microbatch={self.microbatch}")

    def learn(self):
        """The planner's plan for the largest batch, whose graph, forms and microbatch forced ones take."""
        self.plan = self.fleet.plan("m", "--job=train", *self.flags(max(self.batches), "a"))
        self.forward = self.plan["forward_nodes"]

    def file(self, stages, name, depth):
        line = {"share": 1, "depth": depth, "stages": [{"agent": a, "nodes": [[x, y]]} for a, x, y in stages]}
        path = self.fleet.dir / f"{name}-{self.microbatch}.json"
        path.write_text(json.dumps({**{k: self.plan[k] for k in ("model", "graph", "forms", "microbatch")},
                                    "pipelines": [line], "cuts": []}))
        return path

    def alone(self, name, depth=2):
        return self.file([(name, 0, self.forward - 1)], name, depth)

    def cut(self, after, depth=4, second="b", first="a"):
        return self.file([(first, 0, after), (second, after + 1, self.forward - 1)], f"{first}{second}{after}-{depth}", depth)

    def price(self, path, batch):
        """The planner's prediction of a plan: its step, and milliseconds a microbatch by agent. None: it refuses it."""
        done = self.fleet.yoke("plan", "m", "--json", "--job=train", *self.flags(batch, "a"), f"--plan={path}", ok=False)
        if done.code != 0:
            return None
        plan, by = done.json(), {}
        for stage in plan["pipelines"][0]["stages"]:
            by[stage["agent"]] = by.get(stage["agent"], 0) + stage["predicted_ms"]
        return plan["predicted"]["step_ms"], by

    def cuts(self, batch, depth=4):
        """(predicted ms of a step, node, second agent, first agent) of every cut the planner takes, in both orders, the
        best first."""
        found = []
        for after in range(self.forward - 1):
            for order in ("ba", "ab"):
                priced = self.price(self.cut(after, depth, *order), batch)
                if priced:
                    found.append((priced[0], after, *order))
        return sorted(found)

    def busy(self, after, second="b"):
        """Milliseconds that each agent computes for a microbatch, measured at this cut."""
        job = self.run(self.cut(after, second=second), min(self.batches)).job
        db = sqlite3.connect(f"file:{self.fleet.db}?mode=ro", uri=True)
        rows = harness.wait_for("stage times", lambda: db.execute(
            "select agent, sum(ms) from (select agent, stage, sum(compute_ms) / sum(microbatches) as ms from v_stage_times "
            "where job = ? group by 1, 2) group by 1 having count(*) >= 1", [job]).fetchall())
        db.close()
        return dict(rows)

    def equal_cuts(self, n, second="b"):
        """The n nodes behind which the busier of two agents is the least busy: what is measured at one cut corrects what
        the planner predicts for the others."""
        pair, tried, scale, priced = ("a", second), set(), {}, {}

        def busy(after):
            """Milliseconds of both; None where no cut may be."""
            if after not in priced:
                priced[after] = self.price(self.cut(after, second=second), min(self.batches))
            return priced[after] and [priced[after][1].get(name, 0) * scale.get(name, 1) for name in pair]

        while True:
            low, high = 0, self.forward - 2
            while low < high:
                at = (low + high) // 2
                legal = next((x for x in range(at, high) if busy(x)), None)
                if legal is not None and busy(legal)[0] < busy(legal)[1]:
                    low = legal + 1
                else:
                    high = at
            near = sorted((x for x in range(max(low - 6, 0), min(low + 7, self.forward - 1)) if busy(x)),
                          key=lambda x: max(busy(x)))
            if near[0] in tried or len(tried) == 4:
                return near[:n]
            tried.add(near[0])
            measured = self.busy(near[0], second)
            priced, scale = {}, {}  # the run corrected what is predicted, too
            own = busy(near[0])
            scale = {name: measured.get(name, 0) / max(ms, 1e-9) for name, ms in zip(pair, own)}

    def best_cut(self, n, few, many, second="b"):
        """The quickest by slope(), from the most equal one to both sides as long as it gets better: n tries at most."""
        tried = {}

        def ms(after):
            if after not in tried:
                tried[after] = self.slope(self.cut(after, second=second), few, many)[0]
            return tried[after]

        def legal(after, direction):
            near = range(after, after + 9 * direction, direction)
            return next((x for x in near if 0 <= x < self.forward - 1 and
                         self.price(self.cut(x, second=second), min(self.batches))), None)

        best = self.equal_cuts(1, second)[0]
        for direction in (-1, 1):
            while len(tried) < n:
                other = legal(best + 3 * direction, direction)
                if other is None or ms(other) >= ms(best):
                    break
                best = other
        return best

    def run(self, path, batch, source="a", output=None):
        before = {n: processor_ms(p) for n, p in self.fleet.agents.items()}
        done = self.fleet.yoke("train", "m", f"--data=d{batch}", *self.flags(batch, source), f"--plan={path}", "--epochs=1",
                               "--seed=1", "--val=none", "--lr=0.01", "--checkpoint-every=1000", "--json",
                               *([f"--output={output}"] if output else []), timeout=3600)
        lines = [json.loads(line) for line in done.out.strip().split("\n")]
        return Run(lines, {n: processor_ms(p) - before[n] for n, p in self.fleet.agents.items()})

    def step_ms(self, path, batch, source="a"):
        return statistics.median(self.run(path, batch, source).ms)

    def slope(self, path, few, many, source="a"):
        """Milliseconds a microbatch without what a step costs besides, and of the processor by agent; few, many:
        microbatches of the two steps it is taken between."""
        short, long = (self.run(path, m * self.microbatch, source) for m in (few, many))
        ms = (statistics.median(long.ms) - statistics.median(short.ms)) / (many - few)
        return ms, {n: (long.used[n] - short.used[n]) / ((many - few) * self.steps) for n in long.used}

    def compare(self, whole, split):
        """Fails unless two plans give the same losses and the same trained model, to the bit."""
        outputs = self.fleet.dir / "whole.onnx", self.fleet.dir / "split.onnx"
        losses = [self.run(p, min(self.batches), output=o).losses for p, o in zip((whole, split), outputs)]
        if losses[0] != losses[1] or outputs[0].read_bytes() != outputs[1].read_bytes():
            raise SystemExit(f"{split.name}: losses or trained weights differ from the unsplit run: {losses}")
