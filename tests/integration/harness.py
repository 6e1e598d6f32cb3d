"""A fleet of real daemons on loopback, driven by the `yoke` command and REST, for the integration tests."""
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/release/bin"
MODELS = pathlib.Path(os.environ.get("YOKE_MODELS", ROOT / "build/models"))
FULL = os.environ.get("YOKE_FULL") == "1"
SEED = int(os.environ.get("YOKE_SEED", "1"))
FMNIST = ROOT / "tests/data/fmnist_cnn.onnx"
DATASETS = "/usr/share/datasets"
LEASE_S = 6


def wait_for(what, check, seconds=20.0, pause=0.05):
    """Until check() is true; returns what it gave. Fails with `what`."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"gave up after {seconds:.0f} s waiting for {what}")
        time.sleep(pause)


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)

    def last(self):
        return json.loads(self.out.strip().split("\n")[-1])


class Fleet:
    """`with Fleet() as f:` starts yoked; f.agent(name, ...) starts agents. Everything is stopped and removed at the end;
    on failure the logs' ends are shown."""

    def __init__(self, yoked_args=(), start=True):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="yoke-test-"))
        self.db = self.dir / "db" / "yoke.db"
        self.db.parent.mkdir()
        self.args = list(yoked_args)
        self.agents = {}
        self.yoked = None
        self.rest = self.listen = None
        if start:
            self.start_yoked()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.stop()
        if kind is not None:
            for log in sorted(self.dir.glob("*.log")):
                text = log.read_text(errors="replace").split("\n")
                print(f"---- {log.name}\n" + "\n".join(text[-25:]))
        shutil.rmtree(self.dir, ignore_errors=True)
        return False

    def start_yoked(self, **popen):
        """Starts yoked (again): the same ports as before, so that agents find it."""
        rest = self.rest or "http://127.0.0.1:0"
        listen = self.listen or "tcp://127.0.0.1:0"
        ready = self.dir / "ready"
        with open(ready, "w") as out, open(self.dir / "yoked.log", "a") as log:
            self.yoked = subprocess.Popen([BIN / "yoked", f"--db={self.db}", f"--rest={rest}", f"--listen={listen}", *self.args],
                                          stdout=out, stderr=log, **popen)

        def is_ready():
            if self.yoked.poll() is not None:
                raise AssertionError(f"yoked ended with {self.yoked.returncode}: {(self.dir / 'yoked.log').read_text()[-2000:]}")
            return ready.read_text().startswith("ready ") and ready.read_text().endswith("\n")

        wait_for("yoked to be ready", is_ready)
        fields = dict(part.split("=", 1) for part in ready.read_text().split()[1:])
        self.rest, self.listen = fields["rest"], fields["listen"]

    def agent(self, name, *args, emulate=None, taskset=None, wait=True):
        command = [BIN / "yoke-agent", f"--scheduler={self.listen}", f"--state={self.dir / ('state-' + name)}", f"--name={name}",
                   *args]
        if not any(str(a).startswith("--threads") for a in args):
            command.append("--threads=1")
        if emulate is not None:
            path = self.dir / f"{name}.emulate.json"
            path.write_text(json.dumps(emulate))
            command.append(f"--emulate={path}")
        if taskset is not None:
            command = ["taskset", "-c", str(taskset), *command]
        with open(self.dir / f"{name}.log", "a") as log:
            self.agents[name] = subprocess.Popen(command, stdout=log, stderr=log)
        if wait:
            self.wait_alive(name)
        return self.agents[name]

    def wait_alive(self, *names, seconds=20):
        def alive():
            known = {a["name"] for a in self.list("agents") if a["state"] == "alive"}
            return set(names) <= known
        wait_for(f"agents {names} to be alive", alive, seconds)

    def wait_links(self, *pairs, seconds=40):
        def there():
            known = {(link["from_agent"], link["to_agent"]) for link in self.list("links") if link["bytes_per_s"]}
            return set(pairs) <= known
        wait_for(f"links {pairs}", there, seconds)

    def kill(self, name, how=signal.SIGKILL):
        process = self.yoked if name == "yoked" else self.agents[name]
        process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            process.wait(timeout=20)

    def stop(self):
        processes = [p for p in [*self.agents.values(), self.yoked] if p is not None]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # ---- the command ----
    def yoke(self, *args, ok=True, timeout=300, env=None):
        done = subprocess.run([BIN / "yoke", f"--rest={self.rest}", *map(str, args)], capture_output=True, text=True,
                              timeout=timeout, env=env, stdin=subprocess.DEVNULL)
        if ok and done.returncode != 0:
            raise AssertionError(f"yoke {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr[-1500:]}")
        return Result(done.returncode, done.stdout, done.stderr)

    def spawn(self, *args):
        return subprocess.Popen([BIN / "yoke", f"--rest={self.rest}", *map(str, args)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)

    def list(self, what):
        return self.yoke("--json", what).json()

    def add_model(self, path, name):
        return self.yoke("model", "add", path, f"--name={name}")

    def plan(self, model, *args):
        return self.yoke("plan", model, "--json", *args).json()

    def forced(self, plan, stages, depth=3, codec=None, name="forced.json"):
        """A plan file: stages is a list of (agent, [[first, last], ...])."""
        plan = json.loads(json.dumps(plan))
        plan["pipelines"] = [{"share": 1, "depth": depth, "order": "forward-first",
                              "stages": [{"agent": agent, "nodes": nodes} for agent, nodes in stages]}]
        plan["cuts"] = []
        if codec:
            plan["cuts"] = [{"pipeline": 0, "from": i, "to": i + 1, "codec": codec} for i in range(len(stages) - 1)]
        path = self.dir / name
        path.write_text(json.dumps(plan))
        return path

    # ---- REST ----
    def request(self, method, path, body=None, headers=None, raw=False):
        """Status and answer (parsed JSON unless raw)."""
        url = urllib.parse.urlsplit(self.rest)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if raw:
            return answer.status, data
        try:
            return answer.status, json.loads(data) if data else None
        except ValueError:
            return answer.status, data


def yoke(*args, ok=True, timeout=600):
    """A command that needs no scheduler."""
    done = subprocess.run([BIN / "yoke", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)
    if ok and done.returncode != 0:
        raise AssertionError(f"yoke {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr[-1500:]}")
    return Result(done.returncode, done.stdout, done.stderr)


def local(*args, ok=True, timeout=600):
    return yoke("local", *args, ok=ok, timeout=timeout)


class Watch:
    """`with Watch(fleet) as w:` stands between the command (--rest=w.url) and yoked, and keeps what was asked: w.asked is
    a list of "METHOD path", w.posted of (path, body)."""

    def __init__(self, fleet):
        asked, posted = self.asked, self.posted = [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                asked.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
                if self.command == "POST":
                    posted.append((self.path, json.loads(body)))
                headers = {k: v for k, v in self.headers.items() if k.lower() == "content-type"}
                status, data = fleet.request(self.command, self.path, body, headers, raw=True)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = pass_on

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def resident_bytes(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmRSS of {pid}")
