"""Things die in the middle of a batch job: every output is there once and right, or the job fails clearly."""
import random
import signal
import subprocess
import threading
import time

import harness
from harness import DATASETS, FMNIST, LEASE_S, Fleet, local
from run import full
from test_main import n_nodes, same_file

SLOW = {"gflops": 8, "memory_bytes": 4_000_000_000}


def reference(plan):
    """The unsplit run's output file, with the forms and the microbatch of the plan."""
    path = plan.with_suffix(".reference.npy")
    local("batch", FMNIST, f"--data={DATASETS}/fashion-mnist", "--batch=500", f"--plan={plan}", f"--output={path}", "--threads=1")
    return path


def two_stage_job(state, before=lambda fleet: None, breaks=lambda fleet: None):
    """A forced two-stage batch job; before(fleet) runs just before it is sent, breaks(fleet) once it is in that state
    (running: in the middle). Its output is that of the unsplit run."""
    with Fleet() as fleet:
        fleet.agent("pc", f"--data-root={DATASETS}", emulate=SLOW)
        fleet.agent("phone", "--class=phone", emulate=SLOW)
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        plan = fleet.plan("fmnist", "--job=batch", "--source=pc", "--batch=500", "--microbatch=50")
        nodes = n_nodes(plan)
        forced = fleet.forced(plan, [("pc", [[0, nodes // 2]]), ("phone", [[nodes // 2 + 1, nodes - 1]])])
        output = fleet.dir / "out.npy"
        before(fleet)
        client = fleet.spawn("batch", "fmnist", "--data=fashion-mnist", "--source=pc", "--batch=500", f"--plan={forced}",
                             f"--output={output}", "--json")
        harness.wait_for(f"the job to be {state}", lambda: [
            j for j in fleet.list("jobs") if j["state"] == state and (state != "running" or (j["done"] or 0) > 500)], 60)
        breaks(fleet)
        out, err = client.communicate(timeout=180)
        assert client.returncode == 0, err[-2000:]
        assert same_file(output, reference(forced)), "the output differs from the unsplit run"
        rows = fleet.list("jobs")
        assert rows[0]["state"] == "done" and rows[0]["done"] == 10000, rows
        assert abs(rows[0]["accuracy"] - 0.8956) < 1e-9, rows


def faulty_job(breaks):
    two_stage_job("running", breaks=breaks)


def pause(name):
    """Stops a program for longer than the lease, and lets it go on."""
    def breaks(fleet):
        fleet.kill(name, signal.SIGSTOP)
        time.sleep(LEASE_S + 2)
        fleet.kill(name, signal.SIGCONT)
    return breaks


def restart(fleet, name):
    if name == "pc":
        fleet.agent("pc", f"--data-root={DATASETS}", emulate=SLOW, wait=False)
    else:
        fleet.agent("phone", "--class=phone", emulate=SLOW, wait=False)


def test_kill_second_stage():
    faulty_job(lambda fleet: fleet.kill("phone"))


def test_clean_exit_of_second_stage():
    faulty_job(lambda fleet: fleet.kill("phone", signal.SIGTERM))


def test_stop_second_stage():
    """SIGSTOP longer than the lease: sockets stay open, nobody answers."""
    faulty_job(lambda fleet: fleet.kill("phone", signal.SIGSTOP))


def test_kill_source_and_return():
    def breaks(fleet):
        before = [a["agent"] for a in fleet.list("agents") if a["name"] == "pc"]
        fleet.kill("pc")
        time.sleep(1)
        restart(fleet, "pc")
        fleet.wait_alive("pc")
        assert [a["agent"] for a in fleet.list("agents") if a["name"] == "pc"] == before, "another identity"
    faulty_job(breaks)


def test_stop_source_and_continue():
    faulty_job(pause("pc"))


def test_clean_exit_of_source_and_return():
    def breaks(fleet):
        fleet.kill("pc", signal.SIGTERM)
        time.sleep(1)
        restart(fleet, "pc")
    faulty_job(breaks)


def test_kill_yoked():
    def breaks(fleet):
        fleet.kill("yoked")
        time.sleep(0.5)
        fleet.start_yoked()
    faulty_job(breaks)


def test_kill_yoked_and_second_stage():
    def breaks(fleet):
        fleet.kill("yoked")
        fleet.kill("phone")
        fleet.start_yoked()
    faulty_job(breaks)


def test_kill_both_agents_and_return():
    def breaks(fleet):
        fleet.kill("phone")
        fleet.kill("pc")
        time.sleep(1)
        restart(fleet, "pc")
        restart(fleet, "phone")
    faulty_job(breaks)


def test_no_device_left_is_a_clear_failure():
    with Fleet(yoked_args=["--source-wait-ms=4000"]) as fleet:
        fleet.agent("pc", f"--data-root={DATASETS}", emulate=SLOW)
        fleet.add_model(FMNIST, "fmnist")
        client = fleet.spawn("batch", "fmnist", "--data=fashion-mnist", "--source=pc", "--batch=500")
        harness.wait_for("the job to run", lambda: [j for j in fleet.list("jobs") if j["state"] == "running" and j["done"]], 60)
        fleet.kill("pc")
        out, err = client.communicate(timeout=90)
        assert client.returncode == 1 and "pc" in err, (client.returncode, err)
        assert fleet.list("jobs")[0]["state"] == "failed"


def test_cancel_frees_agents():
    with Fleet() as fleet:
        fleet.agent("pc", f"--data-root={DATASETS}", emulate=SLOW)
        fleet.add_model(FMNIST, "fmnist")
        client = fleet.spawn("batch", "fmnist", "--data=fashion-mnist", "--source=pc", "--batch=500")
        job = harness.wait_for("the job to run", lambda: [j for j in fleet.list("jobs") if j["state"] == "running"], 60)[0]
        fleet.yoke("cancel", job["job"])
        assert client.wait(timeout=20) == 1
        assert fleet.list("jobs")[0]["state"] == "canceled"
        start = time.monotonic()
        last = fleet.yoke("batch", "fmnist", "--data=fashion-mnist", "--source=pc", "--batch=500", "--json").last()
        assert abs(last["accuracy"] - 0.8956) < 1e-9 and time.monotonic() - start < 60


def test_stop_yoked_and_continue():
    """Its agents give it up, and join again when it goes on."""
    faulty_job(pause("yoked"))


def test_three_deaths_in_one_job():
    def breaks(fleet):
        for name in ("phone", "pc", "phone"):
            done = fleet.list("jobs")[0]["done"] or 0
            fleet.kill(name)
            restart(fleet, name)
            fleet.wait_alive(name)
            harness.wait_for("results after a death", lambda: (fleet.list("jobs")[0]["done"] or 0) > done, 60)
    faulty_job(breaks)


def loading_job(breaks):
    """breaks(fleet) runs while the phone holds a load up: it was stopped just before the job came."""
    two_stage_job("loading", lambda fleet: fleet.kill("phone", signal.SIGSTOP), breaks)


def test_killed_while_loading():
    loading_job(lambda fleet: fleet.kill("phone"))


def test_silent_while_loading():
    """The load was taken by a socket whose owner never answers: its lease ends the wait."""
    loading_job(lambda fleet: None)


def test_missing_data_is_a_clear_failure():
    with Fleet() as fleet:
        fleet.agent("pc", f"--data-root={DATASETS}", emulate=SLOW)
        fleet.add_model(FMNIST, "fmnist")
        done = fleet.yoke("batch", "fmnist", "--data=no-such-set", "--source=pc", "--batch=500", ok=False, timeout=60)
        assert done.code == 1 and "no-such-set" in done.err, (done.code, done.err)
        assert fleet.list("jobs")[0]["state"] == "failed"


@full
def test_random_kills():
    """Two faults at random moments, many seeds."""
    for seed in range(harness.SEED, harness.SEED + 10):
        rng = random.Random(seed)
        print(f"    seed {seed}")

        def breaks(fleet):
            for _ in range(2):
                time.sleep(rng.uniform(0, 2))
                name = rng.choice(["pc", "phone", "yoked"])
                fleet.kill(name)
                time.sleep(rng.uniform(0, 1))
                if name == "yoked":
                    fleet.start_yoked()
                else:
                    restart(fleet, name)
        faulty_job(breaks)
