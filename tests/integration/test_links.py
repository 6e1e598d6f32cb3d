"""Links as the kernel makes them: a fleet of its own network namespace, whose loopback is shaped or loses packets. There
is no multicast there: the agents join by the address they are given, as from a static list."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import harness
from harness import FMNIST, Fleet, wait_for
from run import Skip


def _inside(what, *args):
    """Runs this file's inside_`what` in a namespace of its own; returns what it prints as JSON."""
    can = subprocess.run(["unshare", "-rn", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root pfifo"],
                         capture_output=True, text=True)
    if can.returncode != 0:
        raise Skip(f"no network namespace here: {can.stderr.strip()[-200:]}")
    done = subprocess.run(["unshare", "-rn", sys.executable, __file__, str(harness.BIN), what, *map(str, args)],
                          capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        raise AssertionError(f"{what}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def _shell(command):
    subprocess.run(command, shell=True, check=True)


def inside_rate(mbit):
    """A fleet of two over a link of so many Mbit/s: what its probe says, in Mbit/s."""
    _shell(f"ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate {mbit}mbit burst 16kb latency 50ms")
    with Fleet() as fleet:
        fleet.agent("a")
        fleet.agent("b")
        fleet.wait_links(("a", "b"), ("b", "a"))
        return [link["bytes_per_s"] * 8e-6 for link in fleet.list("links") if "yoked" not in (link["from_agent"], link["to_agent"])]


def test_probes_of_shaped_links():
    """Set-up time is not counted: near what such a line carries of TCP's data, and in the right order. Within 20 %: the
    kernel's bucket gives some bytes at once, and the machine may be busy; on virtual time (tests/sim) it is 10 %."""
    rates = (10, 20, 40, 80) if harness.FULL else (10, 40)  # faster ones are in tests/sim: not every kernel shapes them
    last = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        probed = list(pool.map(lambda mbit: _inside("rate", mbit), rates))
    for mbit, links in zip(rates, probed):
        carries = mbit * 1448 / 1514  # headers of each packet
        assert len(links) == 2, links
        for got in links:
            assert abs(got - carries) <= 0.2 * carries, f"{mbit} Mbit/s carries {carries:.1f}, the probe says {got:.1f}"
            assert got > last, f"{got} on {mbit} Mbit/s, {last} on the slower one"
        last = max(links)


def test_nearer_device_is_the_source():
    """Uploaded data goes to the nearer of two equal devices: the way to yoked is measured, and in what a plan says."""
    far = {"link": {"up_latency_ms": 15, "down_latency_ms": 15}}
    with Fleet() as fleet:
        fleet.agent("far", emulate=far)
        fleet.agent("near", emulate={"link": {"up_latency_ms": 0.1, "down_latency_ms": 0.1}})
        fleet.add_model(FMNIST, "fmnist")
        for job in ("infer", "batch", "train"):
            more = ["--epochs=2"] if job == "train" else []
            plan = json.loads(fleet.yoke("plan", "fmnist", f"--job={job}", "--batch=4", *more, "--json").out)
            assert plan["source"] == "near", (job, plan)
        fleet.wait_links(("yoked", "far"), ("far", "yoked"), ("yoked", "near"), ("near", "yoked"))
        ways = {(link["from_agent"], link["to_agent"]): link for link in fleet.list("links")}
        assert ways["yoked", "far"]["latency_ms"] >= 15 > ways["near", "yoked"]["latency_ms"], ways
        text = fleet.yoke("plan", "fmnist", "--job=infer", "--explain").out
        assert "yoked -> source" in text and "source -> yoked" in text, text


def inside_black_hole():
    """Two agents whose data ports answer nothing: the way there is a black hole, as for a port that a firewall guards."""
    ports = (7101, 7102)
    _shell("ip link set lo up && ip rule del pref 0 && ip rule add pref 100 lookup local")
    for port in ports:
        _shell(f"ip rule add pref 50 ipproto tcp dport {port} blackhole")
    with Fleet() as fleet:
        for name, port in zip(("pc", "ghost"), ports):
            fleet.agent(name, f"--listen=tcp://127.0.0.1:{port}")
        fleet.add_model(FMNIST, "fmnist")

        def between():
            return [link for link in fleet.list("links") if {link["from_agent"], link["to_agent"]} == {"pc", "ghost"}]

        wait_for("the probe to fail", lambda: any(link["text"] for link in between()), 90)
        plan = fleet.plan("fmnist", "--job=batch", "--objective=throughput", "--source=pc")
        half = plan["pipelines"][0]["stages"][0]["nodes"][-1][1]
        both = fleet.forced(plan, [("pc", [[0, 2]]), ("ghost", [[3, half]])])
        refused = fleet.yoke("plan", "fmnist", f"--plan={both}", "--source=pc", ok=False)
        return {"links": between(), "plan": plan, "refused": [refused.code, refused.out + refused.err]}


def test_black_holed_agent_is_not_scheduled():
    """It announces itself, and is alive: but nothing gets through to it."""
    got = _inside("black_hole")
    for link in got["links"]:
        assert link["origin"] == "unknown" and not link["bytes_per_s"], link
    assert any(link["text"] for link in got["links"]), got["links"]
    stages = [stage["agent"] for line in got["plan"]["pipelines"] for stage in line["stages"]]
    assert stages == ["pc"], stages
    code, text = got["refused"]
    assert code != 0 and "link pc->ghost is not measured" in text, text


if __name__ == "__main__":
    harness.BIN = pathlib.Path(sys.argv[1])
    os.chdir(harness.ROOT)
    print(json.dumps(globals()["inside_" + sys.argv[2]](*sys.argv[3:])))
