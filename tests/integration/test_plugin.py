"""Backends from outside: the example builds against the installed header alone, computes what ref computes, and what is
broken is refused, quarantined or taken out, never believed."""
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import atexit

import harness
from harness import DATASETS, FMNIST, ROOT, Fleet, wait_for

X = ROOT / "tests/golden/fmnist_x.npy"


@functools.lru_cache(maxsize=None)
def objects():
    """Folder of the shared objects, built in a folder of their own from a copy of the example and the installed header."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="yoke-plugin-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)

    def run(*command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    run("cmake", "--install", harness.BIN.parent, "--prefix", base / "prefix", "--component", "headers")
    assert [str(p.relative_to(base / "prefix")) for p in (base / "prefix").rglob("*") if p.is_file()] == ["include/yoke/backend.h"]
    shutil.copytree(ROOT / "tests/plugin_example", base / "source")
    run("cmake", "-S", base / "source", "-B", base / "build", f"-DCMAKE_PREFIX_PATH={base / 'prefix'}")
    run("cmake", "--build", base / "build", "-j2")
    return base / "build"


def so(name):
    return objects() / f"{name}.so"


def local(*args, fault=None, timeout=300):
    env = dict(os.environ)
    if fault:
        env["EXAMPLE_FAULT"] = fault
    return subprocess.run([str(harness.BIN / "yoke"), "local", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env=env)


def relative(a, b):
    import numpy
    x, y = numpy.load(a).astype("float64"), numpy.load(b).astype("float64")
    assert x.shape == y.shape, f"{x.shape} against {y.shape}"
    assert numpy.isfinite(x).all()
    return float(abs(x - y).max() / abs(y).max())


def infer(folder, name, *args, **more):
    output = pathlib.Path(folder) / f"{name}.npy"
    return local("infer", FMNIST, f"--input={X}", f"--output={output}", *args, **more), output


def test_header_stands_alone():
    """C11 and C++ take it alone, with every warning on."""
    header = objects().parent / "prefix/include/yoke/backend.h"
    for compiler, language in (("gcc", "c"), ("gcc", "c++")):
        standard = "-std=c11" if language == "c" else "-std=c++11"
        done = subprocess.run([compiler, standard, "-x", language, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                               str(header)], capture_output=True, text=True)
        if language == "c++" and "cc1plus" in done.stderr:
            continue  # no C++ compiler on this machine
        assert done.returncode == 0, done.stderr


def test_example_equals_ref():
    with tempfile.TemporaryDirectory(prefix="yoke-test-") as folder:
        done, want = infer(folder, "ref", "--backend=ref")
        assert done.returncode == 0, done.stderr
        for name in ("example", "fixed", "twice"):
            done, got = infer(folder, name, f"--backend={so(name)}", "--backend-check-every=1")
            assert done.returncode == 0 and "taken out" not in done.stderr, done.stderr
            assert relative(got, want) <= 1e-5
        done, got = infer(folder, "mixed", f"--backend={so('fixed')},{so('example')},blas,ref")
        assert done.returncode == 0, done.stderr
        assert relative(got, want) <= 1e-5
        done = local("bench", FMNIST, "--ops", "--repeat=1", f"--backend={so('example')},blas")
        assert done.returncode == 0 and done.stdout.count("device@example-1.0") == 4, done.stdout + done.stderr


def test_broken_objects_are_refused():
    cases = {"other_abi": ("other_abi.so", "version 2", "wants version 1"),
             "no_entry": ("no_entry.so", "yoke_backend_entry", "version 1"),
             "no_submit": ("no_submit.so", "no submit"),
             "small_table": ("small_table.so", "bytes"),
             "bad_name": ("bad_name.so", "not-a-name"),
             "own_name": ("own_name.so", "'blas'"),
             "bad_isa": ("bad_isa.so", "with space"),
             "no_device": ("no_device.so", "no such device"),
             "not_there": ("not_there.so",),
             "wrong": ("wrong.so", "refused", "Conv 3x3", "relative difference"),
             "nan": ("nan.so", "refused", "Conv 3x3", "NaN"),
             "fail": ("fail.so", "refused", "the example fails")}
    with tempfile.TemporaryDirectory(prefix="yoke-test-") as folder:
        for name, parts in cases.items():
            done, output = infer(folder, name, f"--backend={so(name)}")
            assert done.returncode == 1, (name, done)
            for part in parts:
                assert part in done.stderr, f"{name}: '{part}' is not in {done.stderr}"
            assert not output.exists()


def test_hang_is_quarantined():
    with tempfile.TemporaryDirectory(prefix="yoke-test-") as folder:
        done, want = infer(folder, "ref", "--backend=blas")
        for name in ("hang", "stuck"):
            done, got = infer(folder, name, f"--backend={so(name)},blas", "--backend-timeout-ms=500")
            assert done.returncode == 0 and "quarantined" in done.stderr, (name, done)
            assert relative(got, want) <= 1e-5


def test_faults_at_work():
    """From some run on it gives NaN, fails or hangs: every answer is right all the same."""
    data = (f"--data={DATASETS}/fashion-mnist", "--batch=500", "--microbatch=50")
    with tempfile.TemporaryDirectory(prefix="yoke-test-") as folder:
        want = pathlib.Path(folder) / "want.npy"
        done = local("batch", FMNIST, *data, f"--output={want}", "--backend=blas")
        assert done.returncode == 0, done.stderr
        for fault, text, limit in (("nan:45", "not finite", 60000), ("fail:45", "in a row failed", 60000),
                                   ("hang:45", "quarantined", 3000)):
            got = pathlib.Path(folder) / "got.npy"
            done = local("batch", FMNIST, *data, f"--output={got}", f"--backend={so('example')},blas",
                         f"--backend-timeout-ms={limit}", fault=fault)
            assert done.returncode == 0 and "taken out" in done.stderr and text in done.stderr, (fault, done.stderr[-1500:])
            assert relative(got, want) <= 1e-5


def backends(fleet, name):
    return next(a["backends"] for a in fleet.list("agents") if a["name"] == name)


def log(fleet, name):
    return (fleet.dir / f"{name}.log").read_text()


def test_agent_goes_on_without():
    """At the start: one that hangs or is wrong is left out, and yoked is told."""
    with Fleet() as fleet:
        fleet.agent("hung", f"--backend={so('hang')},blas", "--backend-timeout-ms=500")
        fleet.agent("wrong", f"--backend={so('wrong')}")
        fleet.agent("right", f"--backend={so('example')},blas")
        assert backends(fleet, "hung").startswith("blas@") and "example" not in backends(fleet, "wrong")
        assert backends(fleet, "right").startswith("example@example-1.0,blas@")
        assert "quarantined" in log(fleet, "hung") and "is refused" in log(fleet, "wrong")
        text = log(fleet, "yoked")
        assert "agent hung goes without: backend example" in text and "agent wrong goes without: backend example" in text, text
        refused = subprocess.run([harness.BIN / "yoke-agent", "--listen=tcp://127.0.0.1:0", f"--state={fleet.dir / 'x'}",
                                  f"--backend={so('other_abi')}"], capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "wants version 1" in refused.stderr, refused


def test_batch_survives_nan():
    """Two agents; the backend of one gives NaN from its fifth run of the job on. The outputs are right, and the next plan
    leaves it out."""
    with Fleet() as fleet:
        trigger = fleet.dir / "trigger"
        os.environ["EXAMPLE_FAULT"] = f"nan:5:{trigger}"
        try:
            fleet.agent("phone", f"--backend={so('example')},blas")
        finally:
            del os.environ["EXAMPLE_FAULT"]
        fleet.agent("pc", f"--data-root={DATASETS}", "--backend=blas")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        job = ("--source=pc", "--batch=500", "--microbatch=50")
        plan = fleet.plan("fmnist", "--job=batch", "--objective=throughput", *job)
        nodes = max(last for p in plan["pipelines"] for s in p["stages"] for _, last in s["nodes"]) + 1
        forms = [form for form in plan["forms"]]
        device = [i for i, op in enumerate(forms) if i >= 2 and ("conv" in op or "gemm" in op)]
        assert device, forms
        for i in device:
            forms[i] = "device@example-1.0"
        plan["forms"] = forms
        two = fleet.forced(plan, [("pc", [[0, 1]]), ("phone", [[2, nodes - 1]])])
        want, got = fleet.dir / "want.npy", fleet.dir / "got.npy"
        done = local("batch", FMNIST, f"--data={DATASETS}/fashion-mnist", "--batch=500", "--microbatch=50", f"--output={want}",
                     "--backend=blas")
        assert done.returncode == 0, done.stderr
        trigger.touch()
        last = fleet.yoke("batch", "fmnist", "--data=fashion-mnist", *job, f"--plan={two}", f"--output={got}", "--json").last()
        assert last["samples"] == 10000
        assert relative(got, want) <= 1e-5
        assert "is taken out" in log(fleet, "phone") and "not finite" in log(fleet, "phone")
        wait_for("phone to join without it", lambda: "example" not in backends(fleet, "phone"))
        assert "agent phone goes without: backend example was taken out" in log(fleet, "yoked")
        plan = fleet.plan("fmnist", "--job=batch", "--objective=throughput", *job)
        assert not any("example" in form for form in plan["forms"])
        last = fleet.yoke("batch", "fmnist", "--data=fashion-mnist", *job, f"--output={got}", "--json").last()
        assert last["samples"] == 10000 and relative(got, want) <= 1e-5
