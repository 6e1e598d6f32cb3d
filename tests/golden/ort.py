"""What ONNX Runtime makes of a model, through onnxruntime-node: in $YOKE_ORT/node_modules or where tests/bench/compare.sh
puts its peers."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = """
const ort = require('onnxruntime-node'), fs = require('fs');
const [model, feed, out] = process.argv.slice(2), given = JSON.parse(fs.readFileSync(feed));
(async () => {
  const session = await ort.InferenceSession.create(model, {logSeverityLevel: 3}), feeds = {}, names = [];
  for (const [name, t] of Object.entries(given)) {
    const b = fs.readFileSync(t.file), raw = b.buffer.slice(b.byteOffset, b.byteOffset + b.length);
    feeds[name] = new ort.Tensor(t.type, t.type == 'int64' ? new BigInt64Array(raw) : new Float32Array(raw), t.dims);
  }
  const results = await session.run(feeds);
  for (const [name, t] of Object.entries(results)) {
    fs.writeFileSync(out + '/' + names.length, Buffer.from(t.data.buffer, t.data.byteOffset, t.data.byteLength));
    names.push({name: name, type: t.type, dims: t.dims});
  }
  fs.writeFileSync(out + '/names', JSON.stringify(names));
})().catch(e => { console.error(String(e)); process.exit(1); });
"""


def run(model, feeds):
    """Outputs by name; None if ONNX Runtime is not here. Fails if it refuses the model."""
    homes = [os.environ.get("YOKE_ORT"), ROOT / "build/release/compare"]
    home = next((h for h in homes if h and pathlib.Path(h, "node_modules/onnxruntime-node").is_dir()), None)
    if home is None or not shutil.which("node"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        given = {}
        for i, (name, array) in enumerate(feeds.items()):
            path = f"{folder}/in{i}"
            np.ascontiguousarray(array).tofile(path)
            given[name] = {"file": path, "type": array.dtype.name, "dims": array.shape}
        pathlib.Path(folder, "feed").write_text(json.dumps(given))
        pathlib.Path(folder, "run.js").write_text(RUN)
        done = subprocess.run(["node", f"{folder}/run.js", str(model), f"{folder}/feed", folder], capture_output=True, text=True,
                              env={**os.environ, "NODE_PATH": f"{home}/node_modules"}, timeout=600)
        if done.returncode:
            raise AssertionError(f"ONNX Runtime refuses {model}: {done.stderr[-500:]}")
        types = {"float32": np.float32, "int64": np.int64, "float64": np.float64}
        return {t["name"]: np.fromfile(f"{folder}/{i}", types[t["type"]]).reshape(t["dims"])
                for i, t in enumerate(json.loads(pathlib.Path(folder, "names").read_text()))}
