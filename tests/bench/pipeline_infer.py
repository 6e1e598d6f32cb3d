#!/usr/bin/env python3
"""Two agents, a core each, as a pipeline: how much of the sum of their speeds a forced cut reaches.

The slope of the run time between M=8 and M=24 microbatches of one image is a pipeline's time per microbatch, without
what filling and emptying it costs. Both speeds are measured the same way while both agents run the whole model alone. The
answer of the split run is compared with the unsplit one first. Prints one line a cut, and the best:

    inference pipeline efficiency X (cut after node N, split S ms, alone A and B ms a microbatch)

Needs build/release and the golden models ($YOKE_MODELS, see tests/golden/make_models.py)."""
import concurrent.futures
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from harness import MODELS, Fleet  # noqa: E402

FEW, MANY = 8, 24


def main(args=None):
    import numpy
    model = MODELS / "resnet34_224.onnx"
    rng = numpy.random.default_rng(1)
    with Fleet() as fleet:
        data = {}
        for n in (FEW, MANY):
            data[n] = fleet.dir / f"x{n}.npy"
            numpy.save(data[n], rng.standard_normal((n, 3, 224, 224), dtype="float32"))
        fleet.agent("a", taskset=0)
        fleet.agent("b", taskset=1)
        fleet.wait_links(("a", "b"), ("b", "a"))
        fleet.add_model(model, "m")
        plan = fleet.plan("m", "--job=batch", "--source=a", f"--batch={MANY}", "--microbatch=1")
        last = max(end for p in plan["pipelines"] for s in p["stages"] for _, end in s["nodes"])
        alone = {name: fleet.forced({**plan, "source": name}, [(name, [[0, last]])], name=f"{name}.json") for name in ("a", "b")}

        def ms(n, source, path, output=None):
            extra = (f"--output={output}",) if output else ()
            done = fleet.yoke("batch", "m", f"--data={data[n]}", f"--source={source}", f"--batch={n}", f"--plan={path}",
                              "--json", *extra).last()
            return 1000 * n / done["images_per_s"]

        def slope(source, path):
            return (ms(MANY, source, path) - ms(FEW, source, path)) / (MANY - FEW)

        whole = fleet.dir / "whole.npy"
        ms(FEW, "a", alone["a"], whole)
        # The cuts whose two halves the planner's profile finds most equal.
        candidates = []
        for after in range(last):
            path = fleet.forced(plan, [("a", [[0, after]]), ("b", [[after + 1, last]])], name=f"cut{after}.json")
            priced = fleet.plan("m", "--job=batch", "--source=a", f"--batch={MANY}", f"--plan={path}")
            candidates.append((max(s["predicted_ms"] for s in priced["pipelines"][0]["stages"]), after, path))
        best = None
        for _, after, path in sorted(candidates)[:2]:
            output = fleet.dir / "split.npy"
            ms(FEW, "a", path, output)
            if output.read_bytes() != whole.read_bytes():
                raise SystemExit(f"cut after node {after}: the answer differs from the unsplit run")
            split, single = [], {"a": [], "b": []}
            for _ in range(args.repeats):
                split.append(slope("a", path))
                with concurrent.futures.ThreadPoolExecutor(2) as both:
                    runs = {name: both.submit(slope, name, alone[name]) for name in ("a", "b")}
                    for name, run in runs.items():
                        single[name].append(run.result())
            s, a, b = (statistics.median(v) for v in (split, single["a"], single["b"]))
            efficiency = (1 / s) / (1 / a + 1 / b)
            print(f"cut after node {after}: efficiency {efficiency:.3f}, split {s:.1f} ms, alone {a:.1f} and {b:.1f} ms "
                  f"a microbatch", flush=True)
            if not best or efficiency > best[0]:
                best = (efficiency, after, s, a, b)
        print(f"inference pipeline efficiency {best[0]:.3f} (cut after node {best[1]}, split {best[2]:.1f} ms, alone {best[3]:.1f} and "
              f"{best[4]:.1f} ms a microbatch)")


if __name__ == "__main__":
    main()
