"""See pipeline.sh."""
import argparse
import concurrent.futures
import json
from statistics import median

import pipeline_infer
import pipeline_torch
from pipeline_fleet import Training

FEW, WHOLE, MANY = 8, 16, 24
LINK = {"bytes_per_s": 40e6, "duplex": "half"}
DEPTHS = 2, 3, 4, 6
TRIAL_GFLOPS = 60


def both(one, two):
    """Runs two functions at the same time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(f) for f in (one, two)]
        return [r.result() for r in runs]


def train(args):
    """A slope against both speeds alone, while both run."""
    with Training(args.model, args.size, microbatch=args.microbatch, batches=(FEW * args.microbatch, MANY * args.microbatch)) as t:
        alone = {n: t.alone(n) for n in "ab"}
        cuts = args.at or [t.best_cut(args.cuts, FEW, MANY)]
        t.compare(alone["a"], t.cut(cuts[0]))
        split, single = {c: [] for c in cuts}, {n: [] for n in "ab"}
        for _ in range(args.repeats):
            for cut in cuts:
                split[cut].append(t.slope(t.cut(cut), FEW, MANY))
            runs = both(*(lambda n=n: t.slope(alone[n], FEW, MANY, n) for n in "ab"))
            for name, (ms, used) in zip("ab", runs):
                single[name].append((ms, used[name]))
        a, b = (median(ms for ms, _ in single[n]) for n in "ab")
        idle_free = 1 / sum(1 / min(used for _, used in single[n]) for n in "ab")
        best = None
        for cut in cuts:
            s = median(ms for ms, _ in split[cut])
            efficiency = 1 / s / (1 / a + 1 / b)
            busy = {n: min(used[n] for _, used in split[cut]) for n in "ab"}
            print(f"cut after node {cut}: efficiency {efficiency:.3f}, split {s:.1f} ms, alone {a:.1f} and {b:.1f} ms a "
                  f"microbatch of {args.microbatch}; processor time {busy['a']:.1f} and {busy['b']:.1f} ms, without waits "
                  f"{idle_free / max(busy.values()):.3f}", flush=True)
            best = max(best or (0, 0), (efficiency, cut))
        print(f"pipeline efficiency {best[0]:.3f} ({args.model} at {args.size}, cut after node {best[1]})", flush=True)


def half(args):
    """The second device at half the speed of the first, emulated: its pace follows from a trial at another."""
    m = args.microbatch
    with Training(args.model, args.size, microbatch=m, batches=(FEW * m, WHOLE * m, MANY * m)) as t:
        own = t.step_ms(t.alone("a"), FEW * m)
        t.start("trial", 1, {"gflops": TRIAL_GFLOPS})
        trial = t.step_ms(t.alone("trial"), FEW * m, "trial")
        t.stop("trial")
        t.stop("b")
        t.start("half", 1, {"gflops": TRIAL_GFLOPS * trial / (2 * own)})
        t.learn()
        alone = t.alone("a")  # with the forms of this plan
        slow = t.step_ms(t.alone("half"), FEW * m, "half") / own
        cuts = args.at or [t.best_cut(args.cuts, FEW, MANY, second="half")]
        t.compare(alone, t.cut(cuts[0], second="half"))
        times = {name: ([], []) for name in ("alone", *cuts)}
        for _ in range(args.repeats):
            for name, (slopes, wholes) in times.items():
                path = alone if name == "alone" else t.cut(name, second="half")
                slopes.append(t.slope(path, FEW, MANY)[0])
                wholes.append(t.step_ms(path, WHOLE * m))
        ours = [median(v) for v in times.pop("alone")]
        best = None
        for cut, found in times.items():
            slope, whole = (median(v) / o for v, o in zip(found, ours))
            print(f"cut after node {cut}: {slope:.3f} by slope, {whole:.3f} of a whole step at M={WHOLE}")
            best = min(best or (9, 9, 0), (slope, whole, cut))
        print(f"half-speed ratio {best[0]:.3f} (bar 0.70; a whole step {best[1]:.3f}, bar 0.74; the second device alone "
              f"takes {slow:.2f} times as long; cut after node {best[2]})", flush=True)


def link(args):
    """The planner's choice against every plan by force, over 40 MB/s, half duplex: every cut of the CNN."""
    chosen(args, "CNN", Training("cnn", "1x28x28", microbatch=16, batches=(8 * 16,), steps=4,
                                 emulate={"a": {"gflops": 4}, "b": {"gflops": 2, "link": LINK}}), None)


def link_large(args):
    """The same with the 8 cuts of the large model that are predicted to be the best."""
    chosen(args, args.model, Training(args.model, args.size, microbatch=args.microbatch, batches=(FEW * args.microbatch,),
                                      emulate={"b": {"link": LINK}}), 8)


def chosen(args, label, training, most):
    """All plans are run in turns; the choice and the four that seemed best then run again, since the least of many noisy
    figures is too low."""
    with training as t:
        batch = t.batches[0]
        choice = t.fleet.dir / "choice.json"
        choice.write_text(json.dumps(t.plan))
        t.compare(t.alone("a"), choice)
        plans = {f"{n} alone": t.alone(n) for n in "ab"}
        for _, after, second, first in t.cuts(batch)[:most]:
            plans |= {f"{first} to node {after}, then {second}, depth {d}": t.cut(after, d, second, first) for d in DEPTHS}
        plans["chosen"] = choice
        tried = timed(t, plans, batch, args.rounds)
        for name in sorted(tried, key=tried.get)[:6]:
            print(f"{label}: {tried[name]:.1f} ms a step, {name}", flush=True)
        rivals = sorted(plans.keys() - {"chosen"}, key=tried.get)[:4]
        final = timed(t, {name: plans[name] for name in (*rivals, "chosen")}, batch, args.repeats)
        own, line = final.pop("chosen"), t.plan["pipelines"][0]
        best = min(final, key=final.get)
        print(f"planner within {100 * (own / final[best] - 1):.1f} % of the best by force ({label}: {own:.1f} ms against "
              f"{final[best]:.1f} with {best}; chosen: {[(s['agent'], s['nodes']) for s in line['stages']]}, depth "
              f"{line['depth']}; of {len(plans) - 1} plans)", flush=True)


def timed(t, plans, batch, rounds):
    """The median step of each plan, run in turns."""
    ms = {name: [] for name in plans}
    for _ in range(rounds):
        for name, path in plans.items():
            ms[name] += t.run(path, batch).ms
    return {name: median(v) for name, v in ms.items()}


def torch(args):
    """The same pipeline in PyTorch, both in one run, each with its best cut, then its best microbatch at that cut."""
    sizes = [m for m in (4, 2, 8) if m <= args.batch]
    with Training(args.model, args.size, microbatch=sizes[0], batches=(args.batch,)) as t, \
            pipeline_torch.Peer(t.model, t.root / f"d{args.batch}", args.batch) as peer:
        cuts = args.at or t.equal_cuts(min(args.cuts, 3))
        pipeline_torch.compare(t.run(t.cut(cuts[0]), args.batch).losses, peer.run(peer.cuts[0], sizes[0], t.steps)[0])

        def ours(cut, m):
            if t.microbatch != m:
                t.microbatch = m
                t.learn()
            return t.step_ms(t.cut(cut), args.batch)

        def theirs(cut, m):
            return peer.step_ms(cut, m, t.steps)

        best = [best_of(f, tried, sizes) for f, tried in ((theirs, peer.cuts), (ours, cuts))]
        (c, m), (cut, own) = best
        pairs = [(theirs(c, m), ours(cut, own)) for _ in range(args.repeats)]
        a, b = (median(pair[i] for pair in pairs) for i in (0, 1))
        print(f"torch pipeline: torch_ms {a:.0f} ours_ms {b:.0f} ratio {b / a:.3f} (a step of {args.batch}; PyTorch cut after "
              f"block {c}, microbatch {m}; ours after node {cut}, microbatch {own})", flush=True)


def best_of(f, cuts, sizes):
    """The best cut at the first size, and the best size at that cut."""
    cut = min(cuts, key=lambda c: f(c, sizes[0])) if len(cuts) > 1 else cuts[0]
    return cut, min(sizes, key=lambda m: f(cut, m))


PARTS = {"train": train, "half": half, "torch": torch, "link": link, "link-large": link_large, "infer": pipeline_infer.main}
LONG = "link", "link-large"


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--only", default="", help="parts: " + ",".join(PARTS))
    parse.add_argument("--forced", action="store_true", help="with the parts " + ", ".join(LONG) + ", which take long")
    parse.add_argument("--microbatch", type=int, default=2, help="samples (of the part torch: chosen)")
    parse.add_argument("--batch", type=int, default=32, help="samples of a step of the part torch")
    parse.add_argument("--model", default="resnet34", help="a KIND of `yoke model new`")
    parse.add_argument("--size", default="3x224x224", help="of its images")
    parse.add_argument("--repeats", type=int, default=5)
    parse.add_argument("--rounds", type=int, default=2, help="of the parts link and link-large, of every plan")
    parse.add_argument("--cuts", type=int, default=6, help="how many near the most equal one are tried for the best")
    parse.add_argument("--at", type=int, nargs="*", help="cut after these nodes instead")
    args = parse.parse_args()
    wanted = args.only.split(",") if args.only else [p for p in PARTS if p not in LONG or args.forced]
    for part in wanted:
        if part not in PARTS:
            parse.error(f"--only={part}: {', '.join(PARTS)}")
    for part in wanted:
        PARTS[part](args)


if __name__ == "__main__":
    main()
