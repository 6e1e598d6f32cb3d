"""Plan files that people edit: run exactly, or refused with the reason, by every command that takes one."""
import json
import xml.etree.ElementTree

import numpy

import harness
from harness import FMNIST, Fleet


def _image(fleet):
    path = fleet.dir / "x.npy"
    numpy.save(path, numpy.zeros((2, 1, 28, 28), "float32"))
    return path


def _write(fleet, plan, name="edited.json"):
    path = fleet.dir / name
    path.write_text(json.dumps(plan))
    return path


def test_bad_plans_are_refused_everywhere():
    """What the plan's lists hold is checked before anything reads it: by plan, infer, batch, local and REST alike."""
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.add_model(FMNIST, "fmnist")
        x = _image(fleet)
        plan = fleet.plan("fmnist", "--job=infer", "--batch=2")
        nodes = plan["pipelines"][0]["stages"][-1]["nodes"][-1][1] + 1

        def stages(*lists):
            return {"pipelines": [{"share": 1, "depth": 1, "stages": [{"agent": "pc", "nodes": n} for n in lists]}]}
        other = "0" * 64
        edits = {
            "short forms": ({"forms": plan["forms"][:3]}, "3 forms"),
            "no forms": ({"forms": []}, "0 forms"),
            "long forms": ({"forms": plan["forms"] * 2}, "forms"),
            "other graph": ({"graph": {"use": "infer", "hash": other}, "forms": ["a"]}, "plan it again"),
            "use": ({"graph": {"use": "train", "hash": plan["graph"]["hash"]}}, "train"),
            "overlap": (stages([[0, 2]], [[2, nodes - 1]]), "node 2"),
            "missing": (stages([[1, nodes - 1]]), "node 0"),
            "out of range": (stages([[0, nodes]]), f"node {nodes}"),
            "cycle": (stages([[0, 0], [2, nodes - 1]], [[1, 1]]), "wait for each other"),
            "cut": ({"cuts": [{"from": 7, "to": 9, "codec": "fp16"}]}, "cuts[0]"),
            "share": ({"pipelines": [dict(plan["pipelines"][0], share=0)]}, "share"),
            "batch": ({"batch": -1}, "batch"),
            "objective": ({"objective": "foo"}, "foo"),
        }
        for name, (edit, says) in edits.items():
            path = _write(fleet, {**plan, **edit})
            for command in (["plan", "fmnist", "--job=infer"], ["infer", "fmnist", f"--input={x}"],
                            ["batch", "fmnist", f"--data={harness.DATASETS}/fashion-mnist"]):
                done = fleet.yoke(*command, f"--plan={path}", ok=False)
                assert done.code == 1 and says in done.err, (name, command, done.err)
            done = harness.local("infer", FMNIST, f"--input={x}", f"--plan={path}", ok=False)
            assert done.code == 1 and says in done.err and "edited.json" in done.err, (name, done.err)
            status, answer = fleet.request("POST", "/v1/plan", {"kind": "infer", "model": "fmnist", "plan": {**plan, **edit}})
            assert status == 400 and says in answer["text"], (name, status, answer)
        for content in ("null", "[]", "7"):
            path = fleet.dir / "edited.json"
            path.write_text(content)
            done = fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={path}", ok=False)
            assert done.code == 1 and "JSON object" in done.err, done.err
            done = harness.local("infer", FMNIST, f"--input={x}", f"--plan={path}", ok=False)
            assert done.code == 1 and "JSON object" in done.err, done.err
        status, answer = fleet.request("POST", "/v1/plan", {"kind": "infer", "model": "fmnist", "plan": None})
        assert status == 400 and "JSON object" in answer["text"], answer
        assert fleet.list("jobs") == [] and fleet.yoked.poll() is None
        fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={_write(fleet, plan)}")
        harness.local("infer", FMNIST, f"--input={x}", f"--plan={_write(fleet, plan)}")


def test_source_of_a_plan():
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.agent("phone")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        x = _image(fleet)
        plan = fleet.plan("fmnist", "--job=infer", "--source=phone")
        assert plan["source"] == "phone"
        path = _write(fleet, plan)
        fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={path}")
        assert fleet.list("jobs")[0]["source"] == "phone"
        done = fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={path}", "--source=pc", ok=False)
        assert done.code == 1 and "phone" in done.err and "pc" in done.err, done.err
        path = _write(fleet, {**plan, "source": "nobody"})
        done = fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={path}", ok=False)
        assert done.code == 1 and "nobody" in done.err, done.err
        nodes = plan["pipelines"][0]["stages"][-1]["nodes"][-1][1] + 1
        path = fleet.forced({**plan, "source": "phone"}, [("pc", [[0, nodes - 1]])])
        done = fleet.yoke("infer", "fmnist", f"--input={x}", f"--plan={path}", "--pin=first,last", ok=False)
        assert done.code == 1 and "--pin=first" in done.err, done.err


def test_default_objective():
    """`yoke plan` asks for what the command of that kind would do, and the help says what that is."""
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.add_model(FMNIST, "fmnist")
        assert fleet.plan("fmnist", "--job=batch", "--batch=64")["objective"] == "throughput"
        assert fleet.plan("fmnist", "--job=infer")["objective"] == "latency"
        assert fleet.plan("fmnist", "--job=batch", "--objective=latency")["objective"] == "latency"
        for command in ("plan", "batch", "infer"):
            text = fleet.yoke(command, "--help").out
            assert "throughput for batch" in text and "[auto]" in text, text


def test_explanations():
    """What binds, what changes bring, and the planned step as text, SVG and JSON; without a plan, why there is none."""
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.agent("phone")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        picture = fleet.dir / "step.svg"
        ask = ("plan", "fmnist", "--job=batch", "--batch=64", "--source=pc", f"--timeline={picture}")
        text = fleet.yoke(*ask, "--explain").out
        for say in ("bottleneck", "alternative", "No plan costs less than", "binds: ", "another device like",
                    "every link twice as fast", "twice the memory", "agent pc", " compute"):
            assert say in text, (say, text)
        rows = [line for line in text.splitlines() if line.endswith("|")]
        assert rows and len({len(row) for row in rows}) == 1 and rows[0].startswith("agent "), text
        svg = xml.etree.ElementTree.parse(picture).getroot()
        assert svg.tag.endswith("svg") and "planned step of 64" in "".join(svg.itertext())
        plain = fleet.plan("fmnist", "--job=batch", "--batch=64", "--source=pc")
        assert not {"binds", "changes", "timeline"} & set(plain)
        plan = fleet.plan("fmnist", "--job=batch", "--batch=64", "--source=pc", "--explain")
        step = plan["predicted"]["step_ms"]
        assert {c["kind"] for c in plan["changes"]} >= {"device", "link", "memory"}, plan["changes"]
        assert all(0 < c["step_ms"] <= step and abs(c["times_as_fast"] * c["step_ms"] - step) < 1e-6 * step for c in plan["changes"])
        assert plan["binds"][0]["kind"] in ("compute", "link") and plan["binds"][0]["text"] in plan["explanation"]
        line = plan["timeline"]
        assert line["microbatches"] == line["of_microbatches"] > 0
        assert max(e["end_ms"] for e in line["events"]) <= step * (1 + 1e-9)
        assert {e["row"] for e in line["events"]} == set(range(len(line["rows"])))
        fleet.yoke("plan", "fmnist", "--job=batch", "--batch=64", f"--plan={_write(fleet, plan)}")  # derived keys are no input
        drawn = fleet.yoke("plan", "fmnist", "--job=train", "--batch=64", "--timeline=/nowhere/x.svg", ok=False)
        assert drawn.code == 1 and "/nowhere/x.svg" in drawn.err, drawn.err
        for body, say in (({"explain": 1}, "explain"), ({"timeline": "yes"}, "timeline")):
            status, answer = fleet.request("POST", "/v1/plan", {"kind": "batch", "model": "fmnist", **body})
            assert status == 400 and say in answer["text"], answer
        status, answer = fleet.request("POST", "/v1/jobs", {"kind": "batch", "model": "fmnist", "explain": True,
                                                            "source": "pc", "data": {"name": "x"}})
        assert status == 400 and "/v1/plan" in answer["text"], answer
        done = fleet.yoke("plan", "fmnist", "--batch=64", "--source=pc", "--pin=first,last", "--deadline-ms=1",
                          "--microbatch=1", ok=False)
        assert done.code == 1 and "the deadline is 1 ms" in done.err and "the best plan needs" in done.err, done.err


def test_no_plan_says_why():
    with Fleet() as fleet:
        fleet.agent("pc", "--memory=500000")
        fleet.agent("phone", "--memory=400000")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")  # its largest weight alone has 803 kB
        done = fleet.yoke("plan", "fmnist", "--batch=4", "--source=pc", ok=False)
        for say in ("these cannot hold together", "agent pc: memory of its stages is", "its limit 0.500 MB", "agent phone: memory",
                    "its limit 0.400 MB", "add a device"):
            assert done.code == 1 and say in done.err, (say, done.err)
        done = fleet.yoke("batch", "fmnist", f"--data={harness.DATASETS}/fashion-mnist", "--source=pc", ok=False)
        assert done.code == 1, done.err
