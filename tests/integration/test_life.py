"""The life of a training: devices that get hot, empty, slow or come back, and where it goes then. Whatever happens, the
parameters are those of the undisturbed training, and a planned move costs no step."""
import hashlib
import json
import re
import sqlite3

import harness
from test_pipeline_train import Trainings

QUICK = ["--lease-ms=1200", "--hot-celsius=45", "--hold-off-ms=2500", "--dwell-ms=1000", "--mtbf-ms=60s", "--set-min-ms=1000"]


class Life(Trainings):
    """Two emulated devices of the same speed with sensors that a test writes; the planner chooses."""

    def __init__(self, names="ab", gflops=None, yoked=(), **train):
        gflops = gflops or {}
        super().__init__(list(names), kind="resnet-small", emulate=lambda n: {"gflops": gflops.get(n, 4), "memory_bytes": 4_000_000_000, **self.device.get(n, {})},
                         yoked=[*QUICK, *yoked], agent=lambda t, n: [f"--sensor-file={t.fleet.dir / n}.sensor", "--sensor-ms=200"], **train)
        self.device = {}

    def __enter__(self):
        self.sense = {n: {"heat": "nominal", "temperature_celsius": 30.0} for n in self.names}
        return super().__enter__()

    def start(self, name, wait=True):
        self.feel(name)
        super().start(name, wait)

    def feel(self, name, **sensors):
        self.sense[name].update(sensors)
        path = self.fleet.dir / f"{name}.sensor"
        new = self.fleet.dir / f"{name}.sensor.new"
        new.write_text(json.dumps(self.sense[name]))
        new.rename(path)

    def devices(self, job):
        """Agents that hold stages of the job's newest plan."""
        plan = self.row(job)["plan"]
        return {s["agent"] for s in self.fleet.request("GET", "/v1/stages")[1] if s["plan"] == plan}

    def steps(self, job):
        return self.fleet.request("GET", f"/v1/jobs/{job}/steps")[1]

    def wait_event(self, job, kind, says="", count=1, seconds=30):
        def there():
            row = self.row(job)
            found = [t for k, t in self.events(job) if k == kind and says in t]
            assert row["state"] not in ("failed", "canceled"), (row, self.events(job))
            if len(found) >= count:
                return found
            assert row["state"] != "done", f"it was over before {kind}: {self.events(job)}"
        try:
            return harness.wait_for(f"event {kind} {says}", there, seconds)
        except AssertionError as e:
            raise AssertionError("\n".join([str(e), *(f"{k}: {t}" for k, t in self.events(job) if k != "checkpoint")])) from None

    def wait_steps(self, job, more):
        n = len(self.steps(job)) + more
        harness.wait_for(f"step {n}", lambda: len(self.steps(job)) >= n, 60)

    def no_step_lost(self, job):
        """Where it went on is behind the last step that was reported until then; returns these places."""
        with sqlite3.connect(self.fleet.db) as db:
            plans = [p for p, in db.execute("SELECT plan FROM v_steps WHERE job = ? ORDER BY step", (job,))]
        resumed = [int(re.search(r"step (\d+)", t).group(1)) for k, t in self.events(job) if k == "resumed"]
        assert plans == sorted(plans), plans
        assert set(resumed) <= {plans.index(p) for p in plans}, (resumed, plans)
        return resumed

    def same_as_alone(self, job):
        """The model and every loss are those of this machine alone."""
        plan, out = self.fleet.dir / "forms.json", self.fleet.dir / "alone.onnx"
        plan.write_text(json.dumps(self.plan))
        done = harness.local("train", self.fleet.dir / "model.onnx", f"--data={self.root}/small", f"--epochs={self.train['epochs']}",
                             f"--batch={self.batch}", f"--microbatch={self.microbatch}", "--seed=7", "--val=none", "--json",
                             "--threads=1", f"--plan={plan}", f"--output={out}")
        losses = [r["loss"] for r in map(json.loads, done.out.splitlines()) if "step" in r]
        assert self.result(job) == (hashlib.sha256(out.read_bytes()).hexdigest(), losses), self.events(job)


def test_hot_and_cooled():
    """Noise about the limit makes one transition; the device is drained without a step lost, used again when it is cool."""
    with Life(epochs=7) as t:
        job = t.submit(None)
        t.wait_steps(job, 4)
        assert t.devices(job) == {"a", "b"}, t.events(job)
        t.feel("b", temperature_celsius=46.0)
        text = t.wait_event(job, "hot")[0]
        assert "b" in text and "45.0" in text, text
        t.wait_event(job, "migrated")
        assert t.devices(job) == {"a"}
        for k in range(4):
            t.feel("b", temperature_celsius=44.0 + 2 * (k % 2))
            t.wait_steps(job, 2)
        assert t.devices(job) == {"a"}
        t.feel("b", temperature_celsius=30.0)
        t.wait_event(job, "cooled")
        t.wait_event(job, "migrated", count=2)
        assert t.devices(job) == {"a", "b"}
        t.same_as_alone(job)
        assert len(t.no_step_lost(job)) == 2
        assert [k for k, _ in t.events(job)].count("hot") == 1
        assert t.row(job)["replans"] == 2, t.events(job)
