"""The life of a training: devices that get hot, empty, slow or come back, and where it goes then. Whatever happens, the
parameters are those of the undisturbed training, and a planned move costs no step."""
import hashlib
import json
import re
import sqlite3
import time

import harness
from run import full
from test_pipeline_train import Trainings

QUICK = ["--hot-celsius=45", "--hold-off-ms=2500", "--dwell-ms=1000", "--mtbf-ms=60s", "--set-min-ms=1000"]


class Life(Trainings):
    """Two emulated devices of the same speed with sensors that a test writes; the planner chooses."""

    def __init__(self, names="ab", gflops=None, device=None, lease="1200ms", **train):
        gflops = gflops or {}
        super().__init__(list(names), kind="resnet-small", emulate=lambda n: {"gflops": gflops.get(n, 10), "memory_bytes": 4_000_000_000, **self.device.get(n, {})},
                         yoked=[*QUICK, f"--lease-ms={lease}"], agent=lambda t, n: [f"--sensor-file={t.fleet.dir / n}.sensor", "--sensor-ms=200"], **train)
        self.device = device or {}

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


def test_shown():
    """What the sensor file says goes over what the emulated device says, and `yoke agents` shows what comes of it."""
    with harness.Fleet([*QUICK]) as fleet:
        path = fleet.dir / "b.sensor"

        def feel(**sensors):
            (fleet.dir / "new").write_text(json.dumps(sensors))
            (fleet.dir / "new").rename(path)

        def shown(mode):
            return harness.wait_for(f"b to be {mode}", lambda: next((a for a in fleet.list("agents") if a["mode"] == mode), None), 20)

        feel(temperature_celsius=31)
        fleet.agent("b", f"--sensor-file={path}", "--sensor-ms=100", emulate={"heat": "nominal", "battery": 0.8})
        row = shown("full")
        assert (row["heat"], row["battery_frac"], row["reason"]) == ("nominal", 0.8, None), row
        feel(battery_frac=0.1, heat="fair")
        row = shown("resting")
        assert (row["heat"], row["battery_frac"]) == ("fair", 0.1) and "battery" in row["reason"] and "10 %" in row["reason"], row
        table = fleet.yoke("agents").out
        assert "DEVICE" in table and "resting" in table and row["reason"] in table, table
        with sqlite3.connect(fleet.db) as db:
            assert db.execute("SELECT mode, reason FROM v_agents").fetchall() == [("resting", row["reason"])]
        fleet.kill("b")
        harness.wait_for("b to be away", lambda: fleet.list("agents")[0]["state"] == "away", 20)
        assert fleet.list("agents")[0]["mode"] is None and fleet.list("agents")[0]["reason"] is None


def test_hot_cooled_lost_returned():
    """Noise about the limit makes one transition; the device is drained without a step lost and used again when it is cool;
    when it dies and comes back it is used again too, and the job says what became of it."""
    with Life(epochs=3, batch=8, microbatch=2, gflops={"a": 5, "b": 5}) as t:
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
        t.wait_steps(job, 2)
        assert len(t.no_step_lost(job)) >= 2
        t.fleet.kill("b")
        killed = time.monotonic()
        text = t.wait_event(job, "recovered")[0]
        print(f"    recovered {time.monotonic() - killed:.1f} s after the kill ({text})")
        moves = len(t.wait_event(job, "migrated"))
        t.start("b", wait=False)
        assert "b" in t.wait_event(job, "returned")[0]
        t.wait_event(job, "migrated", count=moves + 1)
        assert t.devices(job) == {"a", "b"}
        t.same_as_alone(job)
        events = t.events(job)
        assert [k for k, _ in events].count("hot") == 1 and any(k == "lost" and "b" in x for k, x in events), events
        with sqlite3.connect(t.fleet.db) as db:
            assert db.execute("SELECT kind, text FROM v_events WHERE job = ? ORDER BY event", (job,)).fetchall() == events


@full
def test_battery_on_the_mains():
    with Life(epochs=10) as t:
        t.feel("b", battery_frac=0.6, charging=True)
        job = t.submit(None)
        t.wait_steps(job, 4)
        assert t.devices(job) == {"a", "b"}, t.events(job)
        t.feel("b", battery_frac=0.58)
        assert "while it is charging" in t.wait_event(job, "battery")[0]
        t.feel("b", battery_frac=0.55)
        t.wait_event(job, "battery", "fell to 55 %")
        t.wait_event(job, "migrated")
        harness.wait_for("b to have no stage", lambda: t.devices(job) == {"a"}, 20)
        t.same_as_alone(job)
        t.no_step_lost(job)


@full
def test_slows_down():
    """A device that declares nothing and takes five times as long: its share goes, and no step with it."""
    with Life(epochs=16, device={"b": {"throttle": {"after_s": 14, "over_s": 4, "factor": 8}}}) as t:
        job = t.submit(None)
        t.wait_steps(job, 3)
        assert t.devices(job) == {"a", "b"}, t.events(job)
        assert "b" in t.wait_event(job, "slower")[0]
        t.wait_event(job, "migrated") # because that pays, or by a trial
        t.same_as_alone(job)
        t.no_step_lost(job)


@full
def test_trial():
    """The link gets much worse than it was measured: three steps on the best device alone decide."""
    slow = {"link": {"bytes_per_s": 60_000_000, "throttle": {"after_s": 14, "factor": 20}}}
    with Life(epochs=14, device={"b": slow}, lease="4s") as t:
        job = t.submit(None)
        t.wait_steps(job, 3)
        assert t.devices(job) == {"a", "b"}, t.events(job)
        assert "3 steps there decide" in t.wait_event(job, "trial")[0]
        assert "it stays there" in t.wait_event(job, "fallback")[0]
        assert len(t.devices(job)) == 1
        t.same_as_alone(job)
        t.no_step_lost(job)


@full
def test_all_rest():
    """Where no device is left the job waits until one has cooled."""
    with Life("a", epochs=6) as t:
        job = t.submit(None)
        t.wait_steps(job, 4)
        t.feel("a", temperature_celsius=47.0)
        t.wait_event(job, "waiting", "for devices that rest")
        n = len(t.steps(job))
        time.sleep(3)
        assert len(t.steps(job)) == n and t.row(job)["state"] in ("waiting", "planning")
        t.feel("a", temperature_celsius=20.0)
        t.same_as_alone(job)
        t.no_step_lost(job)
