#!/usr/bin/python3
"""Writes op_ort.txt: quantised ops, ops that choose by value, features and losses with the outputs of ONNX Runtime.

Usage: make_op_ort.py DIR, where DIR/node_modules holds onnxruntime-node. A line is op | attributes | inputs | outputs
in the notation of tests/unit/one_op.h."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).parent
rng = np.random.RandomState(3)
TYPES = {"f32": (TensorProto.FLOAT, np.float32, "float32"), "f64": (TensorProto.DOUBLE, np.float64, "float64"),
         "u8": (TensorProto.UINT8, np.uint8, "uint8"), "i8": (TensorProto.INT8, np.int8, "int8"),
         "i32": (TensorProto.INT32, np.int32, "int32"), "i64": (TensorProto.INT64, np.int64, "int64"),
         "bool": (TensorProto.BOOL, np.bool_, "bool")}
SHORT = {v[1]: k for k, v in TYPES.items()}
cases = []


def add(op, attrs, ins, n_out=1):
    cases.append((op, attrs, ins, n_out))


def f(*shape, lo=-2.0, hi=2.0):
    return rng.uniform(lo, hi, shape).astype(np.float32)


def q(kind, *shape):
    lo, hi = (0, 255) if kind == "u8" else (-128, 127)
    return rng.randint(lo, hi + 1, shape).astype(TYPES[kind][1])


def text(x):
    return f"{SHORT[x.dtype.type]}:{','.join(map(str, x.shape))}=" + ",".join(
        "%.9g" % v if x.dtype.kind == "f" else str(int(v)) for v in x.ravel())


def attr_text(attrs):
    kinds = {int: "i", float: "f", str: "s"}
    return " ".join(f"{k}={kinds[type(v)]}:{v}" if type(v) in kinds else
                    f"{k}={'floats' if isinstance(v[0], float) else 'ints'}:{','.join(map(str, v))}"
                    for k, v in attrs.items())


for kind in ("u8", "i8"):
    for _ in range(4):
        add("QuantizeLinear", {}, [f(4, 9, lo=-400, hi=400), f(lo=0.3, hi=2), q(kind)])
        add("QuantizeLinear", {"axis": 1}, [f(2, 5, 3, lo=-100, hi=100), f(5, lo=0.3, hi=2), q(kind, 5)])
        add("DequantizeLinear", {"axis": 1}, [q(kind, 2, 5, 3), f(5, lo=0.3, hi=2), q(kind, 5)])
for _ in range(6):
    add("DynamicQuantizeLinear", {}, [f(5, 7, lo=-rng.uniform(0, 9), hi=rng.uniform(0, 9))], 3)
for _ in range(3):
    for b in ("u8", "i8"):
        add("MatMulInteger", {}, [q("u8", 5, 13), q(b, 13, 4), q("u8"), q(b)])
        add("MatMulInteger", {}, [q("u8", 2, 5, 13), q(b, 2, 13, 4), q("u8"), q(b)])
        add("QLinearMatMul", {}, [q("u8", 5, 13), f(lo=0.01, hi=0.1), q("u8"), q(b, 13, 4), f(lo=0.01, hi=0.1), q(b),
                                  f(lo=0.5, hi=3), q("u8")])
        for attrs in ({"pads": [1, 0, 0, 2]}, {"strides": [2, 1], "dilations": [1, 2]}, {"auto_pad": "SAME_UPPER"}):
            w = q(b, 4, 3, 2, 3)
            add("ConvInteger", attrs, [q("u8", 2, 3, 6, 7), w, q("u8"), q(b)])
            add("QLinearConv", attrs, [q("u8", 2, 3, 6, 7), f(lo=0.01, hi=0.1), q("u8"), w, f(4, lo=0.01, hi=0.1),
                                       np.zeros(4, TYPES[b][1]), f(lo=0.5, hi=3), q("u8"),
                                       rng.randint(-3000, 3000, 4).astype(np.int32)])
        add("QLinearConv", {"group": 3}, [q("u8", 1, 3, 6, 7), f(lo=0.01, hi=0.1), q("u8"), q(b, 6, 1, 3, 3),
                                          f(lo=0.01, hi=0.1), q(b), f(lo=0.5, hi=3), q("u8")])
for _ in range(8):
    corner = f(2, 20, 2, lo=0, hi=10)
    boxes = np.concatenate([corner, corner + f(2, 20, 2, lo=-4, hi=4)], 2)
    for centre in (0, 1):
        add("NonMaxSuppression", {"center_point_box": centre},
            [np.abs(boxes) if centre else boxes, f(2, 3, 20, lo=0, hi=1), np.array(6, np.int64),
             np.array(rng.uniform(0, 0.8), np.float32), np.array(0.2, np.float32)])
x = rng.randint(-3, 4, (4, 6, 5))
for t in (np.float32, np.int64, np.int32):
    for axis in (0, 1, -1):
        for largest in (0, 1):
            add("TopK", {"axis": axis, "largest": largest}, [x.astype(t), np.array([3], np.int64)], 2)
for t in (np.float32, np.int64):
    for srt in (0, 1):
        add("Unique", {"sorted": srt}, [x.astype(t)], 4)
        add("Unique", {"sorted": srt, "axis": 1}, [(x[:, :, :1] > 0).astype(t)], 4)
    add("NonZero", {}, [x.astype(t)])
    add("Compress", {"axis": 1}, [x.astype(t), rng.rand(5) > 0.5])
    add("Compress", {}, [x.astype(t), rng.rand(50) > 0.5])
for size in (1, 3, 5, 9):  # ONNX Runtime takes odd sizes only
    add("LRN", {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}, [f(2, 7, 3, 4)])
add("MeanVarianceNormalization", {}, [f(2, 3, 4, 5)])
add("MeanVarianceNormalization", {"axes": [1, 2]}, [f(2, 3, 4)])
for p in (1, 2):
    for axis in (0, 1, -1):
        add("LpNormalization", {"p": p, "axis": axis}, [f(3, 4, 5)])
for axis in (0, 1, -1):
    add("Hardmax", {"axis": axis}, [f(3, 4, 5)])
for n in (1, 2, 5, 9):
    add("Det", {}, [f(3, n, n)])
for mode in ("TF", "IDF", "TFIDF"):
    for skip in (0, 1, 4):
        add("TfIdfVectorizer", {"mode": mode, "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": skip,
                                "ngram_counts": [0, 3, 7], "ngram_indexes": [0, 1, 2, 3, 4, 5],
                                "pool_int64s": [1, 2, 3, 1, 2, 2, 3, 1, 2, 3], "weights": [1.5, 2.0, 0.5, 3.0, 1.0, 2.5]},
            [rng.randint(0, 5, (3, 12)).astype(np.int64)])
for red in ("mean", "sum", "none"):
    ids = rng.randint(0, 5, (3, 4)).astype(np.int64)
    for attrs in ({"reduction": red}, {"reduction": red, "ignore_index": 2}):
        add("NegativeLogLikelihoodLoss", attrs, [f(3, 5, 4), ids, f(5, lo=0.1, hi=1)])
        add("SoftmaxCrossEntropyLoss", attrs, [f(3, 5, 4), ids, f(5, lo=0.1, hi=1)], 2)
        add("SoftmaxCrossEntropyLoss", attrs, [f(3, 5, 4), ids], 2)

RUNNER = """
const ort = require('onnxruntime-node'), fs = require('fs');
const arrays = {float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array,
                bool: Uint8Array};
(async () => {
  const out = [];
  for (const c of JSON.parse(fs.readFileSync(process.argv[2]))) {
    try {
      const s = await ort.InferenceSession.create(c.model, {logSeverityLevel: 3, graphOptimizationLevel: 'disabled'});
      const feeds = {};
      for (const f of c.feeds)
        feeds[f.name] = new ort.Tensor(f.type, f.type === 'int64' ? BigInt64Array.from(f.data.map(BigInt))
                                                                  : arrays[f.type].from(f.data), f.dims);
      const r = await s.run(feeds);
      out.push(s.outputNames.map(n => ({type: r[n].type, dims: r[n].dims, data: Array.from(r[n].data, Number)})));
    } catch (e) { out.push(String(e)); }
  }
  console.log(JSON.stringify(out));
})();
"""


def main(folder):
    with tempfile.TemporaryDirectory() as tmp:
        runs = []
        for k, (op, attrs, ins, n_out) in enumerate(cases):
            names, outs = [f"i{i}" for i in range(len(ins))], [f"o{i}" for i in range(n_out)]
            node = helper.make_node(op, names, outs, **attrs)
            graph = helper.make_graph([node], "g", [
                helper.make_tensor_value_info(n, TYPES[SHORT[x.dtype.type]][0], x.shape) for n, x in zip(names, ins)],
                [onnx.ValueInfoProto(name=n) for n in outs])
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8),
                      f"{tmp}/{k}.onnx")
            runs.append({"model": f"{tmp}/{k}.onnx", "feeds": [
                {"name": n, "type": TYPES[SHORT[x.dtype.type]][2], "dims": list(x.shape),
                 "data": [float(v) if x.dtype.kind == "f" else int(v) for v in x.ravel()]} for n, x in zip(names, ins)]})
        pathlib.Path(f"{tmp}/cases.json").write_text(json.dumps(runs))
        pathlib.Path(f"{tmp}/run.js").write_text(RUNNER)
        answers = json.loads(subprocess.run(
            ["node", f"{tmp}/run.js", f"{tmp}/cases.json"], check=True, capture_output=True,
            env={"NODE_PATH": f"{folder}/node_modules", "PATH": "/usr/bin:/bin"}).stdout)
    lines, back = [], {v[2]: v[1] for v in TYPES.values()}
    for (op, attrs, ins, _), answer in zip(cases, answers):
        if isinstance(answer, str):
            print(op, attrs, answer[:200])
            continue
        outs = [np.array(a["data"]).astype(back[a["type"]]).reshape(a["dims"]) for a in answer]
        lines.append("|".join([op, attr_text(attrs), ";".join(map(text, ins)), ";".join(map(text, outs))]))
    (HERE / "op_ort.txt").write_text(
        "# op | attributes | inputs | outputs of ONNX Runtime, by make_op_ort.py\n" + "\n".join(lines) + "\n")
    print(len(lines), "of", len(cases))


main(sys.argv[1])
