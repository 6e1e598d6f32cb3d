"""An agent that may not take more memory than its plan says lives through a training."""
import os
import pathlib

import harness
from run import Skip
from test_pipeline_train import Trainings

ROOT = pathlib.Path("/sys/fs/cgroup/memory")
OVERHEAD = 16 << 20  # of an agent that holds no stage


class Limit:
    """A memory cgroup of version 1; processes that are started inside belong to it."""

    def __init__(self, limit):
        self.path = ROOT / f"yoke-test-{os.getpid()}"
        try:
            self.path.mkdir()
            (self.path / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as why:
            raise Skip(f"no memory cgroup can be made here: {why}")

    def start(self, function):
        mine = next(line.split(":")[2] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            return function()
        finally:
            home = ROOT / mine.lstrip("/")
            ((home if home.is_dir() else ROOT) / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        words = (self.path / "memory.oom_control").read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def peak(self):
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    def end(self):
        try:
            self.path.rmdir()
        except OSError:
            pass


def test_limited_to_its_plan():
    if not os.access(ROOT / "cgroup.procs", os.W_OK):
        raise Skip("no memory cgroups of version 1 that this user may use")
    with Trainings(["a", "b"], kind="resnet18", batch=8, microbatch=4, momentum=0.9) as t:
        t.train["checkpoint_every"] = 100
        plan = t.cut("ab", [t.forward // 2])
        status, seen = t.fleet.request("POST", "/v1/plan", t.request(plan=plan))
        assert status == 200, seen
        planned = sum(s["memory_bytes"] for s in seen["pipelines"][0]["stages"] if s["agent"] == "b")
        assert planned > 50e6, planned
        t.fleet.kill("b")
        limit = Limit(planned + planned // 10 + OVERHEAD)
        try:
            agent = limit.start(lambda: t.fleet.agent("b", "--threads=1", f"--memory={planned}"))
            t.fleet.wait_links(("a", "b"), ("b", "a"))
            job = t.submit(plan)
            t.wait(job)
            assert agent.poll() is None and limit.kills() == 0, limit.kills()
            assert not [e for e in t.events(job) if e[0] in ("waiting", "again", "lost", "replanned")], t.events(job)
            print(f"    planned {planned / 1e6:.0f} MB, limit {(planned * 1.1 + OVERHEAD) / 1e6:.0f} MB, peak with caches {limit.peak() / 1e6:.0f} MB")
            t.fleet.kill("b")
        finally:
            limit.end()


def test_little_memory():
    """An agent that may have 40 MiB joins, is measured, and gets what fits: it is never killed."""
    if not os.access(ROOT / "cgroup.procs", os.W_OK):
        raise Skip("no memory cgroups of version 1 that this user may use")
    with Trainings(["a"], momentum=0.9) as t:
        limit = Limit(40 << 20)
        try:
            agent = limit.start(lambda: t.fleet.agent("b", wait=False))
            t.fleet.wait_links(("a", "b"), ("b", "a"))
            joined = limit.peak()
            room = next(a["memory_bytes"] for a in t.fleet.list("agents") if a["name"] == "b")
            assert 1e6 < room < 24e6, room
            for shape in ({"microbatch": 1024, "batch": 1024}, {"microbatch": 256, "batch": 512}, {}):
                status, plan = t.fleet.request("POST", "/v1/plan", {**t.request(), **shape})
                assert status == 200, plan
                assert all(s["memory_bytes"] <= room for p in plan["pipelines"] for s in p["stages"] if s["agent"] == "b"), plan
            t.wait(t.submit(t.cut("ab", [t.forward // 2])))
            half = {**t.cut("ba", [t.forward // 2]), "microbatch": 1024}  # more than it has: refused, and not tried
            status, answer = t.fleet.request("POST", "/v1/plan", {**t.request(plan=half), "microbatch": 1024, "batch": 1024})
            assert status == 400 and "agent b" in answer["text"] and "its limit" in answer["text"], answer
            print(f"    budget {room / 1e6:.1f} MB, peak {joined / 1e6:.1f} MB when joined, {limit.peak() / 1e6:.1f} MB in the end")
            assert agent.poll() is None and limit.kills() == 0, limit.kills()
            t.fleet.kill("b")
        finally:
            limit.end()
