"""What lies beside the database is not what was written: who needs it is told which file of which model, and giving it
again mends it."""
import hashlib

import harness
from harness import Fleet, local


def break_file(path, how):
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:len(data) // 2])
    else:
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)


def test_damaged_content_is_named_and_comes_again():
    import numpy

    with Fleet() as fleet:
        blobs = fleet.db.parent / "blobs"
        x, y, want = fleet.dir / "x.npy", fleet.dir / "y.npy", fleet.dir / "want.npy"
        data = fleet.dir / "root" / "few"
        data.mkdir(parents=True)
        numpy.save(x, numpy.random.default_rng(harness.SEED).random((4, 1, 12, 12), "float32"))
        numpy.save(data / "x.npy", numpy.load(x)), numpy.save(data / "y.npy", numpy.zeros(4, "int64"))
        fleet.agent("pc", f"--data-root={fleet.dir}/root")

        def failed(*args, says):
            done = fleet.yoke(*args, ok=False)
            assert done.code == 1 and all(word in done.err for word in says), (args, done.code, done.err)
            job = fleet.list("jobs")[0]
            assert job["state"] == "failed" and job["replans"] == 0, job

        def infer(name, file, ok=True):
            if not ok:
                return "infer", name, f"--input={x}", f"--output={y}"
            fleet.yoke("infer", name, f"--input={x}", f"--output={y}")
            local("infer", file, f"--input={x}", f"--output={want}")
            assert abs(numpy.load(y) - numpy.load(want)).max() < 1e-5
            return None

        train = ("--data=few", "--source=pc", "--batch=4", "--val=none")
        files = {}
        for seed, how in enumerate(("byte", "cut", "gone")):
            name = f"m-{how}"
            files[name] = fleet.dir / f"{name}.onnx"
            harness.yoke("model", "new", "mlp", "--input=1x12x12", f"--seed={seed}", files[name])
            fleet.add_model(files[name], name)
            graph = next(m["graph"] for m in fleet.list("models") if m["model"] == name)
            break_file(blobs / f"{graph}.weights", how)
            says = ("weight '", f"of model {name} is damaged", f"{graph}.weights", "yoke model add")
            failed(*infer(name, files[name], ok=False), says=says)
            failed("train", name, *train, says=says)  # its graph is another, its weights are these
            fleet.add_model(files[name], name)
            infer(name, files[name])

        # What agents got before is still there for them, but not for another one.
        graph = next(m["graph"] for m in fleet.list("models") if m["model"] == "m-gone")
        break_file(blobs / f"{graph}.weights", "cut")
        fleet.kill("pc")
        fleet.agent("other", f"--data-root={fleet.dir}/root")
        failed(*infer("m-gone", None, ok=False), says=("weight '", "of model m-gone is damaged", f"{graph}.weights"))
        fleet.add_model(files["m-gone"], "m-gone")
        infer("m-gone", files["m-gone"])
        train = ("--data=few", "--source=other", "--batch=4", "--val=none")

        # The file that was given: a training is made from it.
        name = "m-byte"
        given = blobs / hashlib.sha256(files[name].read_bytes()).hexdigest()
        for how in ("byte", "cut", "gone"):
            break_file(given, how)
            failed("train", name, *train, says=(f"the file of model {name} is damaged", given.name, "yoke model add"))
            fleet.add_model(files[name], name)
            assert given.read_bytes() == files[name].read_bytes()
        with harness.Watch(fleet) as watch:
            harness.yoke(f"--rest={watch.url}", "train", name, *train[:-1])
        # What it is judged with goes by itself, should this client not come to remove it.
        added = [body for path, body in watch.posted if path == "/v1/models"]
        assert len(added) == 1 and added[0]["temporary"] is True and added[0]["name"].startswith(f"{name}@"), added
        assert f"DELETE /v1/models/{name}%40" in watch.asked[-1] and len(fleet.list("models")) == len(files), watch.asked

        # The graph, which is read after a start.
        graph = next(m["graph"] for m in fleet.list("models") if m["model"] == name)
        for how in ("byte", "gone"):
            fleet.kill("yoked")
            break_file(blobs / f"{graph}.skeleton", how)
            fleet.start_yoked()
            fleet.wait_alive("other")
            done = fleet.yoke(*infer(name, files[name], ok=False), ok=False)
            says = (f"the graph of model {name} is damaged", "yoke model add", f"{graph}.skeleton")
            assert done.code == 1 and all(word in done.err for word in says), done.err
            fleet.add_model(files[name], name)
            infer(name, files[name])

        # Data: who has them gives them again without being asked; who has only their hash is told.
        numpy.save(x, numpy.load(x) + 1)
        body = x.read_bytes()
        key = hashlib.sha256(body).hexdigest()
        status, _ = fleet.request("PUT", f"/v1/blobs/{key}?offset=0&total={len(body)}", body,
                                  {"Content-Type": "application/octet-stream"})
        assert status == 200, status
        break_file(blobs / key, "byte")
        status, answer = fleet.request("POST", "/v1/jobs", {"kind": "infer", "model": name, "data": {"blob": key}, "outputs": True})
        assert status == 201, answer
        done = fleet.yoke("job", answer["job"], "--watch", ok=False)
        assert done.code == 1 and "is damaged" in done.err and key in done.err and "give it again" in done.err, done.err
        infer(name, files[name])
