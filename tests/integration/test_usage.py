"""A wrong value of any flag of any command is wrong usage: exit code 2, the flag by its name, and nothing was done."""
import concurrent.futures
import re
import subprocess

import harness

ADDRESSES = ["foo", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "tcp://127.0.0.1:99999", "http://127.0.0.1:1"]
NUMBERS = ("N", "E", "K", "T", "X", "TIME", "DEGREES", "FRACTION", "BYTES", "SIZE")
# What is wrong of a flag whose help says neither that it is a number nor the words that it takes.
BAD = {
    "seed": ["x", "-2"], "rest": ["foo", "http://", "http://127.0.0.1", "http://127.0.0.1:x", "http://127.0.0.1:99999"],
    "name": ["", "a b", ".a", "a/b", "a" * 101], "size": ["", "n", "n=", "=3", "n=0", "n=x", "n=99999999999"],
    "pin": ["", "middle", "first,"], "codec": ["", "fp8", "fp16,"], "split": ["", "foo"], "mean": ["", "x", "1,,2", "nan"],
    "std": ["", "x", "1,"], "preset": ["", "best"], "resize": ["", "0", "5y", "3x"], "crop": ["", "0", "5y", "x3"],
    "interpolation": ["", "best"], "schedule": ["", "foo", "step", "step:x", "cosine:x", "constant:1"],
    "augment": ["", "foo", "pad-crop:x"], "backend": ["", "nonsense", "ref,", "ref,nonsense"], "microbatch": ["0", "x", ""],
    "train val": ["", "x", "2", "0", "-1"], "local train val": ["", "2", "0", "-1"],
    "model new input": ["", "1x8", "axbxc", "0x0x0", "1x8x8x8"], "train pin": ["last", "first,last"],
    "yoked db": [""], "yoked log-file": [""], "yoked listen": ADDRESSES, "yoke-agent listen": ADDRESSES,
    "yoke-agent scheduler": ADDRESSES, "yoked data-root": ["", "/nowhere"], "yoke-agent data-root": ["", "/nowhere"],
    "yoke-agent state": [""], "yoke-agent emulate": ["", "/nowhere.json"], "yoke-agent sensor-file": [""], "config": ["/nowhere"],
    # Anything but nothing may be the name of something, which is looked for later.
    **{name: [""] for name in ("plan", "source", "data", "output", "input", "labels", "preprocess", "timeline", "plot", "checkpoint",
                               "freeze", "loss-output", "dump")},
    "yoke-agent name": []}
BESIDE = {"infer": ["--input=x"], "batch": ["--data=x"], "train": ["--data=x"], "local infer": ["--input=x"],
          "local batch": ["--data=x"], "local train": ["--data=x", "--checkpoint=/nowhere"], "model new": ["--input=1x8x8"],
          "job": ["--timeline=x.svg"]}
WORDS = {"MODEL": "m", "NAME": "m", "ID": "1", "FILE": "/nowhere/y.npy", "FILE.onnx": "/nowhere.onnx", "out.onnx": "/nowhere/out.onnx", "KIND": "mlp",
         "DIR": "/nowhere"}
SWITCHES = ("help", "version", "print-config")


def run(program, *arguments):
    # What is not refused ends otherwise: no scheduler, no such file, no such folder.
    return subprocess.run([harness.BIN / program, *arguments], capture_output=True, text=True, timeout=20, cwd="/",
                          stdin=subprocess.DEVNULL)


def flags(text):
    """(name, what the help shows behind '=' or None) of every flag."""
    return re.findall(r"^  --([a-z0-9-]+)(?:=(\S+(?: \S+)?))?", text, re.MULTILINE)


def wrong_values(where, name, shows):
    for key in (f"{where} {name}", name):
        if key in BAD:
            return BAD[key]
    if not shows:
        return [] if name in SWITCHES else ["maybe"]
    if shows in NUMBERS:
        return ["x", "99999999999999999999999" if shows != "X" else "1e99"]
    assert re.fullmatch(r"[a-z0-9|-]+", shows), f"{where} --{name}={shows}: say in BAD what is a wrong value of it"
    return ["nonsense", ""]


def cases():
    daemons = {"yoked": ["--db=/proc/yoke/yoke.db", "--rest=http://127.0.0.1:0", "--listen=tcp://127.0.0.1:0", "--local-agents=1"],
               "yoke-agent": ["--scheduler=tcp://127.0.0.1:9", "--state=/proc/yoke"]}
    for program, before in daemons.items():
        for name, shows in flags(run(program, "--help").stdout):
            for value in wrong_values(program, name, shows):
                yield program, [*before, f"--{name}={value}"], name
    for command in re.findall(r"^  yoke (.*?)  ", run("yoke", "--help").stdout + "\n", re.MULTILINE):
        words = command.split()
        named = [w for w in words if w.islower() and "." not in w]
        own = [WORDS[w] for w in words[len(named):] if w in WORDS]
        where = " ".join(named)
        for name, shows in flags(run("yoke", *named, "--help").stdout):
            before = [f for f in BESIDE.get(where, []) if not f.startswith(f"--{name}=")]
            for value in wrong_values(where, name, shows):
                for more in ([[], ["--job=train"]] if where == "plan" and name != "job" else [[]]):
                    yield "yoke", ["--rest=http://127.0.0.1:9", *named, *own, *before, *more, f"--{name}={value}"], name


def test_wrong_values_are_wrong_usage():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        tried = list(pool.map(lambda case: (case, run(case[0], *case[1])), cases()))
    bad = [f"{program} {' '.join(arguments)}: {done.returncode} {done.stderr[:200]!r}" for (program, arguments, name), done in tried
           if done.returncode != 2 or name not in done.stderr]
    assert not bad, f"{len(bad)} of {len(tried)}:\n" + "\n".join(bad)
    assert len(tried) > 500, len(tried)
