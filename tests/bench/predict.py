#!/usr/bin/env python3
"""How long a plan takes against what the planner said: measured / predicted step time by fleet, medians of repeats.

Fleets: the demo's emulated PC and phone, a faster emulated pair, and two real local agents. Each runs the planner's own
plan and forced two-stage plans; answers are compared with the unsplit run first. The bar is 0.85 to 1.15 in the median.

    predicted FLEET PLAN ratio R
    prediction median M over N runs

Needs build/release."""
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from harness import DATASETS, FMNIST, Fleet  # noqa: E402
from test_main import n_nodes, sql  # noqa: E402

REPEATS = 3
PHONE_LINK = {"bytes_per_s": 40e6, "up_latency_ms": 1, "down_latency_ms": 1, "duplex": "half"}
FLEETS = {
    "demo": ({"gflops": 2, "memory_bytes": 4_000_000_000}, {"gflops": 1, "memory_bytes": 2_000_000_000, "link": PHONE_LINK}),
    "faster": ({"gflops": 8, "memory_bytes": 4_000_000_000},
               {"gflops": 4, "memory_bytes": 2_000_000_000, "link": {**PHONE_LINK, "bytes_per_s": 200e6}}),
    "real": (None, None),
}


def main():
    ratios = []
    for name, (pc, phone) in FLEETS.items():
        with Fleet() as fleet:
            fleet.agent("pc", f"--data-root={DATASETS}", emulate=pc)
            fleet.agent("phone", "--class=phone", emulate=phone)
            fleet.wait_links(("pc", "phone"), ("phone", "pc"))
            fleet.add_model(FMNIST, "fmnist")
            job = ("--source=pc", "--batch=500")
            plan = fleet.plan("fmnist", "--job=batch", "--objective=throughput", *job)
            last = n_nodes(plan) - 1
            plans = {"planner": None}
            for after in (1, 3):
                plans[f"cut{after}"] = fleet.forced(plan, [("pc", [[0, after]]), ("phone", [[after + 1, last]])],
                                                    name=f"cut{after}.json")
            for label, path in plans.items():
                for _ in range(REPEATS):
                    extra = (f"--plan={path}",) if path else ()
                    done = fleet.yoke("batch", "fmnist", "--data=fashion-mnist", *job, *extra, "--json").last()
                    assert abs(done["accuracy"] - 0.8956) < 1e-9, done
                rows = sql(fleet, "select measured_ms / predicted_ms from v_plan_accuracy where measured_ms > 0 "
                                  f"order by plan desc limit {REPEATS}")
                found = [float(row) for row in rows]
                ratios += found
                print(f"predicted {name} {label} ratio {statistics.median(found):.3f}", flush=True)
    print(f"prediction median {statistics.median(ratios):.3f} over {len(ratios)} runs")


if __name__ == "__main__":
    main()
