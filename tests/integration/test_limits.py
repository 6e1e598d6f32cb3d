"""Bad input and hard places: every one gets an error that names the thing, and nothing falls over."""
import json
import os
import pathlib
import resource
import socket
import stat
import subprocess
import urllib.parse

import harness
from harness import BIN, DATASETS, FMNIST, ROOT, Fleet, local, resident_bytes


def test_second_daemon_on_one_database():
    with Fleet() as fleet:
        second = subprocess.run([BIN / "yoked", f"--db={fleet.db}", "--rest=http://127.0.0.1:0", "--listen=tcp://127.0.0.1:0"],
                                capture_output=True, text=True, timeout=20)
        assert second.returncode == 1 and "yoke.db" in second.stderr, second


def test_busy_port():
    with Fleet() as fleet:
        second = subprocess.run([BIN / "yoked", f"--db={fleet.dir}/other.db", f"--rest={fleet.rest}",
                                 "--listen=tcp://127.0.0.1:0"], capture_output=True, text=True, timeout=20)
        port = str(urllib.parse.urlsplit(fleet.rest).port)
        assert second.returncode == 1 and port in second.stderr, second


def test_off_loopback_is_refused():
    done = subprocess.run([BIN / "yoked", "--db=/tmp/nowhere.db", "--rest=http://0.0.0.0:0"], capture_output=True, text=True,
                          timeout=20)
    assert done.returncode in (1, 2) and "loopback" in done.stderr, done
    assert not pathlib.Path("/tmp/nowhere.db").exists()


def test_no_permission():
    with Fleet(start=False) as fleet:
        done = subprocess.run([BIN / "yoked", "--db=/proc/yoke/yoke.db", "--rest=http://127.0.0.1:0",
                               "--listen=tcp://127.0.0.1:0"], capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and "/proc/yoke" in done.stderr, done
        done = subprocess.run([BIN / "yoke-agent", "--scheduler=tcp://127.0.0.1:9", "--state=/proc/yoke"], capture_output=True,
                              text=True, timeout=20)
        assert done.returncode == 1 and "/proc/yoke" in done.stderr, done


def test_wrong_usage():
    for command in (["yoke"], ["yoke", "nonsense"], ["yoke", "batch"], ["yoke", "plan", "m", "--objektive=latency"],
                    ["yoke", "plan", "m", "--batch=0"], ["yoked", "--local-agents=-1"], ["yoke-agent"],
                    ["yoke-agent", "--scheduler=tcp://127.0.0.1:9", "--class=toaster"]):
        done = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2, (command, done)
        assert done.stderr.strip(), command
    done = subprocess.run([BIN / "yoke", "plan", "m", "--objektive=latency"], capture_output=True, text=True)
    assert "--objective" in done.stderr, done.stderr
    for program in ("yoke", "yoked", "yoke-agent"):
        done = subprocess.run([BIN / program, "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and "--" in done.stdout


def test_print_config_reads_back():
    for program in ("yoked", "yoke-agent"):
        printed = subprocess.run([BIN / program, "--print-config"], capture_output=True, text=True, timeout=20)
        assert printed.returncode == 0, printed
        again = subprocess.run([BIN / program, "--config=/dev/stdin", "--print-config"], input=printed.stdout,
                               capture_output=True, text=True, timeout=20)
        assert again.returncode == 0 and again.stdout == printed.stdout
        kept = (harness.ROOT / "config" / f"{program}.conf").read_text()
        assert kept == printed.stdout, f"config/{program}.conf is not what {program} --print-config prints"


def test_hostile_models():
    good = FMNIST.read_bytes()
    with Fleet() as fleet:
        cases = {"empty": b"", "text": b"hello world\n" * 100, "truncated": good[: len(good) // 2],
                 "nested": b"\x3a\x80\x80\x80\x80\x08" * 50, "huge": b"\x3a\xff\xff\xff\xff\x7f" + b"x" * 100}
        for name, data in cases.items():
            path = fleet.dir / f"{name}.onnx"
            path.write_bytes(data)
            done = fleet.yoke("model", "add", path, ok=False)
            assert done.code == 1 and name in done.err, (name, done.err)
        assert fleet.list("models") == []
        fleet.add_model(FMNIST, "fmnist")


def test_wrong_input_shape_and_dtype():
    import numpy
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.add_model(FMNIST, "fmnist")
        for name, array in (("rank", numpy.zeros((2, 28, 28), "float32")), ("size", numpy.zeros((2, 1, 28, 27), "float32")),
                            ("dtype", numpy.zeros((2, 1, 28, 28), "float64"))):
            path = fleet.dir / f"{name}.npy"
            numpy.save(path, array)
            done = fleet.yoke("infer", "fmnist", f"--input={path}", ok=False)
            assert done.code == 1 and "x" in done.err, (name, done.err)
            done = harness.local("infer", FMNIST, f"--input={path}", ok=False)
            assert done.code == 1, (name, done.err)


def test_rest_bodies():
    with Fleet() as fleet:
        for body, status in (("{", 400), ("[]", 400), ('{"kind": "batch"}', 400), ('{"kind":"batch","model":"no"}', 404)):
            got, answer = fleet.request("POST", "/v1/jobs", body)
            assert got == status and answer["error"] and answer["text"], (body, got, answer)
        got, _ = fleet.request("POST", "/v1/jobs", "{}", {"Content-Type": "text/plain"})
        assert got == 415, got
        got, _ = fleet.request("GET", "/v1/agents", headers={"Host": "evil.example"})
        assert got == 403, got
        got, _ = fleet.request("GET", "/v1/agents", headers={"Origin": "http://evil.example"})
        assert got == 403, got
        for path in ("/v1/models/../../etc/passwd", "/v1/blobs/..%2f..%2fetc%2fpasswd", "/v1/jobs/%00", "/nothing"):
            got, _ = fleet.request("GET", path)
            assert got in (400, 404), (path, got)
        url = urllib.parse.urlsplit(fleet.rest)
        with socket.create_connection((url.hostname, url.port)) as s:
            s.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                      b"Content-Length: 20000000\r\n\r\n{")
            s.settimeout(10)
            answer = s.recv(4096)
            assert b" 413 " in answer.split(b"\r\n")[0] + b" " and b"limit" in answer, answer
        with socket.create_connection((url.hostname, url.port)) as s:
            s.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                      b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
            s.settimeout(10)
            assert b" 411 " in s.recv(4096).split(b"\r\n")[0] + b" "


def test_data_set_names_are_confined():
    with Fleet() as fleet:
        fleet.agent("pc", f"--data-root={DATASETS}")
        fleet.add_model(FMNIST, "fmnist")
        for name in ("../../etc", "/etc", "fashion-mnist/../../../etc", "nothing-here"):
            status, job = fleet.request("POST", "/v1/jobs", {"kind": "batch", "model": "fmnist", "data": {"name": name},
                                                             "source": "pc", "batch": 100})
            if status >= 400:
                continue
            done = fleet.yoke("job", job["job"], "--watch", ok=False)
            assert done.code == 1, (name, done.out)
            assert fleet.list("jobs")[0]["state"] == "failed"


def test_connect_and_vanish():
    """1,000 clients that connect to either port, say something or nothing, and go: memory is flat."""
    with Fleet() as fleet:
        agent = fleet.agent("pc")
        rest, listen = urllib.parse.urlsplit(fleet.rest), urllib.parse.urlsplit(fleet.listen)
        says = [b"", b"GET / HTTP/1.1\r\nHost: x", b"\x00" * 40, b"1KOY\xff\xff\xff\xff" + b"\x00" * 8, b"x" * 5000]

        def rounds(n):
            for i in range(n):
                url = rest if i % 2 else listen
                with socket.create_connection((url.hostname, url.port)) as s:
                    try:
                        s.sendall(says[i % len(says)])
                    except OSError:
                        pass
        rounds(300)
        harness.wait_for("the daemon to answer", lambda: fleet.list("agents"))
        before = resident_bytes(fleet.yoked.pid)
        rounds(1000)
        harness.wait_for("the daemon to answer", lambda: fleet.list("agents"))
        grown = resident_bytes(fleet.yoked.pid) - before
        assert grown < 2 << 20, f"yoked grew by {grown} bytes"
        descriptors = len(os.listdir(f"/proc/{fleet.yoked.pid}/fd"))
        assert descriptors < 100, descriptors
        assert agent.poll() is None


def test_idle_agent_is_small():
    with Fleet() as fleet:
        agent = fleet.agent("pc")
        harness.time.sleep(2)
        resident = resident_bytes(agent.pid)
        print(f"    idle agent: {resident / 2**20:.1f} MiB")
        assert resident <= 16 << 20, f"{resident / 2**20:.1f} MiB"


def test_absent_memory_figure():
    """An agent that does not know its memory gets no stage, and the answer names it."""
    with Fleet() as fleet:
        fleet.agent("tiny", emulate={"gflops": 5, "memory_bytes": 100_000})
        fleet.add_model(FMNIST, "fmnist")
        done = fleet.yoke("plan", "fmnist", "--job=batch", "--batch=64", "--source=tiny", ok=False)
        assert done.code == 1 and "tiny" in done.err and "memory" in done.err, done.err


def test_full_disk():
    """A file-size limit stands in for a full disk: the upload fails with a reason and the daemon lives."""
    with Fleet(start=False) as fleet:
        limit = 400 * 1024

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        fleet.start_yoked(preexec_fn=small_files)
        done = fleet.yoke("model", "add", FMNIST, ok=False)
        assert done.code == 1 and done.err.strip(), done
        assert fleet.list("models") == []
        assert fleet.yoked.poll() is None


def test_output_replaces_files_only():
    """A device is written, a link keeps its target, a full device is an error and no node is replaced."""
    with Fleet() as fleet:
        out = fleet.dir / "real.npy"
        link = fleet.dir / "link.npy"
        out.write_bytes(b"old")
        link.symlink_to(out)
        arguments = ("infer", FMNIST, f"--input={ROOT / 'tests/golden/fmnist_x.npy'}")
        local(*arguments, f"--output={link}")
        assert link.is_symlink() and out.read_bytes()[:6] == b"\x93NUMPY"
        answer = local(*arguments, "--output=/dev/full", ok=False)
        assert answer.code == 1 and "/dev/full" in answer.err and "space" in answer.err, answer.err
        assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_one_agent_per_state_folder():
    with Fleet() as fleet:
        fleet.agent("pc")
        taken = fleet.dir / "taken"
        first = subprocess.Popen([BIN / "yoke-agent", f"--scheduler={fleet.listen}", f"--state={taken}", "--name=one"],
                                 stderr=subprocess.DEVNULL)
        try:
            fleet.wait_alive("one")
            done = subprocess.run([BIN / "yoke-agent", f"--scheduler={fleet.listen}", f"--state={taken}", "--name=two"],
                                  capture_output=True, text=True, timeout=20)
            assert done.returncode == 1 and "taken" in done.stderr and "in use" in done.stderr, done.stderr
        finally:
            first.kill()
            first.wait()


def test_agents_stay_on_loopback():
    for flag in ("--listen=tcp://0.0.0.0:0", "--scheduler=tcp://10.0.0.1:7712", "--scheduler=foo"):
        done = subprocess.run([BIN / "yoke-agent", flag], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and flag in done.stderr, (flag, done.stderr)


def test_foreign_and_empty_databases_are_refused():
    import sqlite3
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "other.db"
        connection = sqlite3.connect(other)
        connection.execute("create table theirs (x)")
        connection.commit()
        connection.close()
        before = other.read_bytes()
        for db, code, words in ((other, 1, "another program"), ("", 2, "--db=")):
            done = subprocess.run([BIN / "yoked", f"--db={db}", "--rest=http://127.0.0.1:0", "--listen=tcp://127.0.0.1:0"],
                                  capture_output=True, text=True, timeout=20, cwd=folder)
            assert done.returncode == code and words in done.stderr, done.stderr
        assert other.read_bytes() == before


def test_wrong_words_in_flags_are_usage():
    for arguments in (("job", "abc"), ("cancel", "abc"), ("jobs", "--rest=foo"), ("batch", "m", "--data=x", "--microbatch=0"),
                      ("batch", "m", "--data=x", "--split=foo"), ("plan", "m", "--pin=middle"), ("plan", "m", "--codec=foo"),
                      ("batch", "m", "--data=x", "--mean=x"), ("plan", "m", "--plan="), ("plan", "m", "--job=foo"), ("infer", "m", "--input="), ("local",)):
        done = subprocess.run([BIN / "yoke", *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and done.stderr, (arguments, done.returncode, done.stderr)
    for arguments in (("help",), ("local", "--help"), ("model", "--help")):
        done = subprocess.run([BIN / "yoke", *arguments], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and "yoke " in done.stdout, (arguments, done)


def test_flags_that_would_say_nothing_are_refused():
    """A flag is used or refused, with its own name and what to do; a microbatch is cut from the batch."""
    import numpy

    def refused(command, *args, says, code=2):
        done = command(*args, ok=False)
        assert done.code == code and all(word in done.err for word in says), (args, done.code, done.err)

    def plain(*args, ok):
        return harness.yoke("--rest=http://127.0.0.1:9", *args, ok=ok)

    for flag in ("--optimizer=adamw", "--bn=frozen", "--lr=0.1", "--freeze=a", "--schedule=cosine", "--recompute", "--epochs=2"):
        for job in ([], ["--job=batch"], ["--job=infer"]):
            refused(plain, "plan", "m", flag, *job, says=(flag.split("=")[0] + " ", "--job=train"))
    for args, says in ((("plan", "m", "--job=train", "--deadline-ms=5"), "--deadline-ms"), (("job", "1", "--step=2"), "--timeline"),
                       (("infer", "m", "--input=x", "--labels=l", "--json"), "--labels"),
                       (("local", "infer", "m", "--input=x", "--labels=l", "--output=y"), "--labels"),
                       (("local", "bench", "m", "--input=x", "--batch=3"), "--batch"),
                       (("train", "m", "--data=x", "--label-smoothing=1"), "--label-smoothing=1"),
                       (("train", "m", "--data=x", "--loss=mse", "--ignore-index=1"), "--ignore-index=1"),
                       (("train", "m", "--data=x", "--schedule=cosine:1"), "--schedule=cosine:1")):
        refused(plain, *args, says=(says,))
    with Fleet() as fleet:
        root = fleet.dir / "root"
        (root / "few").mkdir(parents=True)
        x, y = root / "few/x.npy", root / "few/y.npy"
        numpy.save(x, numpy.zeros((20, 1, 28, 28), "float32"))
        numpy.save(y, numpy.zeros(20, "int64"))
        fleet.agent("pc", f"--data-root={root}")
        fleet.add_model(FMNIST, "m")
        # One rule for every command and for REST.
        for command, first in ((fleet.yoke, ("plan", "m")), (fleet.yoke, ("plan", "m", "--job=train")),
                               (fleet.yoke, ("batch", "m", "--data=few", "--source=pc")),
                               (fleet.yoke, ("train", "m", "--data=few", "--source=pc")),
                               (local, ("batch", FMNIST, f"--data={root}/few")), (local, ("train", FMNIST, f"--data={root}/few"))):
            refused(command, *first, "--batch=4", "--microbatch=5", code=1,
                    says=("--microbatch=5", "batch of 4", "--batch=5 or more"))
        for path, more in (("plan", {}), ("jobs", {"data": {"name": "few"}, "source": "pc"})):
            status, answer = fleet.request("POST", f"/v1/{path}", {"kind": "batch", "model": "m", "batch": 4, "microbatch": 5, **more})
            assert status == 400 and '"microbatch"' in answer["text"], answer
        status, answer = fleet.request("POST", "/v1/plan", {"kind": "batch", "model": "m", "microbatch": 5})
        assert status == 200 and (answer["batch"], answer["microbatch"]) == (5, 5), answer
        # A plan keeps its batch unless another is asked for.
        plan = fleet.dir / "plan.json"
        plan.write_text(fleet.yoke("plan", "m", "--batch=6", "--microbatch=3", "--source=pc", "--json").out)
        assert fleet.plan("m", f"--plan={plan}")["batch"] == 6
        assert fleet.yoke("batch", "m", f"--plan={plan}", "--data=few", "--source=pc", "--json").last()["samples"] == 20
        assert fleet.request("GET", "/v1/jobs/1/plan")[1]["batch"] == 6
        for command, model in ((fleet.yoke, "m"), (local, FMNIST)):
            refused(command, "batch", model, f"--data={root}/few", "--microbatch=2", f"--plan={plan}", code=1, says=("2", "3"))
        # Flags of images beside data that holds none, here and where the data is.
        for flag in ("--preset=imagenet", "--resize=28", "--crop=28", "--interpolation=nearest", "--preprocess=none"):
            word = flag.split("=")[0]
            refused(local, "batch", FMNIST, f"--data={root}/few", flag, code=1, says=(word, "JPEG"))
            refused(local, "infer", FMNIST, f"--input={x}", flag, code=1, says=(word, "JPEG"))
            refused(fleet.yoke, "infer", "m", f"--input={x}", flag, code=1, says=(word, "JPEG"))
        refused(local, "infer", FMNIST, f"--input={x}", "--mean=1", code=1, says=("--mean", "JPEG"))
        refused(fleet.yoke, "batch", "m", "--data=few", "--source=pc", "--resize=28", code=1, says=("--resize", "JPEG"))
        # A split that is asked for is there.
        refused(local, "batch", FMNIST, f"--data={root}/few", "--split=train", code=1, says=("no split 'train'",))
        refused(fleet.yoke, "batch", "m", "--data=few", "--source=pc", "--split=train", code=1, says=("no split 'train'",))
        refused(local, "bench", FMNIST, "--tune", f"--plan={plan}", code=1, says=("--tune",))
        # Who follows a training says nothing else than it does.
        status, answer = fleet.request("POST", "/v1/jobs", {"kind": "train", "model": "m", "source": "pc", "data": {"name": "few"},
                                                            "batch": 4, "train": {"epochs": 1000000, "lr": 0.0, "bn": "frozen"}})
        assert status == 201, answer
        for flag, says in (("--lr=0.5", "lr 0.5"), ("--batch=8", "8"), ("--optimizer=adamw", "adamw"), ("--freeze=x", "freeze x"),
                           ("--schedule=step:3", "step"), ("--microbatch=2", "2"), ("--val=0.5", "val 0.5"),
                           ("--source=phone", "follows has pc"), ("--data=other", "follows has few")):
            refused(fleet.yoke, "train", "m", "--resume", flag, code=1, says=("leave it out", flag.split("=")[0], says))
        follow = fleet.spawn("train", "m", "--resume", "--data=few", "--source=pc", "--lr=0", "--batch=4", "--bn=frozen", "--json")
        harness.wait_for("steps of the training", lambda: '"step"' in follow.stdout.readline(), 60)
        fleet.yoke("cancel", str(answer["job"]))
        assert follow.wait(60) == 1 and "canceled" in follow.stderr.read()
        follow.stdout.close()
        follow.stderr.close()


def _blobs(fleet):
    return sorted(p.name for p in (fleet.db.parent / "blobs").iterdir())


def test_content_goes():
    """What was refused, broken off or removed leaves nothing behind; what others use stays."""
    import onnx
    with Fleet() as fleet:
        bad = fleet.dir / "bad.onnx"
        bad.write_bytes(b"no model at all\n" * 1000)
        assert fleet.yoke("model", "add", bad, ok=False).code == 1
        harness.wait_for("the refused file to go", lambda: not _blobs(fleet))
        # An upload that breaks off is gone at the next start.
        status, _ = fleet.request("PUT", f"/v1/blobs/{'0' * 64}?offset=0&total=1000", b"x" * 100,
                                  {"Content-Type": "application/octet-stream"})
        assert status == 200 and _blobs(fleet) == ["0" * 64 + ".part"]
        fleet.kill("yoked", harness.signal.SIGTERM)
        fleet.start_yoked()
        assert _blobs(fleet) == []
        # Two models of one graph's weights: each can go alone.
        fleet.add_model(FMNIST, "one")
        model = onnx.load(FMNIST)
        last = model.graph.node[-1]
        model.graph.node.append(onnx.helper.make_node("Relu", [last.output[0]], ["more"]))
        model.graph.output[0].name = "more"
        other = fleet.dir / "other.onnx"
        onnx.save(model, other)
        fleet.add_model(other, "two")
        fleet.agent("pc")
        import numpy
        x = fleet.dir / "x.npy"
        numpy.save(x, numpy.ones((1, 1, 28, 28), "float32"))
        done = fleet.yoke("model", "remove", "two")
        assert "removed" in done.out, done.out
        assert [m["model"] for m in fleet.list("models")] == ["one"]
        fleet.kill("yoked", harness.signal.SIGTERM)
        fleet.start_yoked()
        fleet.wait_alive("pc")
        fleet.yoke("infer", "one", f"--input={x}")
        status, answer = fleet.request("DELETE", "/v1/models/one")
        assert status == 200 and answer["freed_bytes"] > 0, answer
        left = harness.wait_for("the files to go", lambda: not [n for n in _blobs(fleet) if "." in n and not n.startswith("job-")])
        assert left and fleet.list("models") == []
        done = fleet.yoke("model", "remove", "one", ok=False)
        assert done.code == 1 and "yoke models" in done.err, done.err
        fleet.add_model(FMNIST, "one")  # and may come again
        fleet.yoke("infer", "one", f"--input={x}")


def test_output_removed():
    import numpy

    with Fleet() as fleet:
        x, out = fleet.dir / "x.npy", fleet.dir / "y.npy"
        numpy.save(x, numpy.ones((2, 1, 28, 28), "float32"))
        fleet.agent("pc")
        fleet.add_model(FMNIST, "m")
        job = fleet.yoke("infer", "m", f"--input={x}", f"--output={out}", "--json").last()["job"]
        kept = [n for n in _blobs(fleet) if n.startswith(f"job-{job}")]
        assert kept and fleet.request("GET", f"/v1/jobs/{job}/outputs")[0] == 200
        again, full = fleet.dir / "again.npy", fleet.dir / "no" / "again.npy"
        assert fleet.yoke("output", "get", job, again).out == f"output of job {job} in {again}\n"
        assert again.read_bytes() == out.read_bytes()
        for words, code, says in (((job, again, "nobody"), 1, "nobody"), (("99", again), 1, "99"), ((job, full), 1, str(full)),
                                  (("x", again), 2, "'x' is not a job id"), ((job,), 2, "usage: yoke output get ID FILE [NAME]")):
            done = fleet.yoke("output", "get", *words, ok=False)
            assert done.code == code and says in done.err and not done.out, (words, done.code, done.err)
        done = fleet.yoke("output", "remove", job)
        assert done.out == f"output of job {job} removed\n", done.out
        harness.wait_for("the files to go", lambda: not set(kept) & set(_blobs(fleet)))
        assert fleet.request("GET", f"/v1/jobs/{job}/output")[0] == 404
        events = fleet.request("GET", f"/v1/jobs/{job}/events?cursor=0")[1]["events"]
        assert events[-1]["kind"] == "removed" and fleet.yoke("--json", "job", job).json()["state"] == "done", events
        # Again, of a job that is not there, of one that has not ended, and of what is no job.
        for words, code, says in (((job,), 1, "keeps no output"), (("99",), 1, "no job 99"), (("x",), 2, "'x' is not a job id"),
                                  ((), 2, "usage: yoke output remove ID")):
            done = fleet.yoke("output", "remove", *words, ok=False)
            assert done.code == code and says in done.err and not done.out, (words, done.code, done.err)
        answer = fleet.yoke("infer", "m", f"--input={x}", "--json").last()
        assert fleet.yoke("output", "remove", answer["job"], "--json").last() == {"job": answer["job"], "files": 1}


def test_model_in_use_stays():
    with Fleet() as fleet:
        fleet.add_model(FMNIST, "fmnist")
        status, job = fleet.request("POST", "/v1/jobs", {"kind": "batch", "model": "fmnist", "data": {"name": "d"}, "source": "pc"})
        assert status == 201, job
        status, answer = fleet.request("DELETE", "/v1/models/fmnist")
        assert status == 409 and f"job {job['job']}" in answer["text"], answer
        fleet.yoke("cancel", job["job"])
        status, answer = fleet.request("DELETE", "/v1/models/fmnist")
        assert status == 200, answer


def test_upload_on_a_full_disk_leaves_nothing():
    """The part of an upload that failed goes, so that the next one has its room."""
    with Fleet() as fleet:
        data = os.urandom(1 << 20)
        resource.prlimit(fleet.yoked.pid, resource.RLIMIT_FSIZE, (300 * 1024, resource.RLIM_INFINITY))
        path = f"/v1/blobs/{harness.hashlib.sha256(data).hexdigest()}?offset=0&total={len(data)}"
        status, answer = fleet.request("PUT", path, data, {"Content-Type": "application/octet-stream"})
        assert status >= 400 and "cannot write" in answer["text"], answer
        assert _blobs(fleet) == []
        resource.prlimit(fleet.yoked.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        status, answer = fleet.request("PUT", path, data, {"Content-Type": "application/octet-stream"})
        assert status == 200 and answer["complete"], answer
