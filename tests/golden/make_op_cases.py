#!/usr/bin/python3
"""Writes op_cases.txt: single nodes (lines as in tests/unit/op_line.h) with the outputs that ONNX Runtime gives.

Usage: make_op_cases.py DIR, where DIR/node_modules holds onnxruntime-node. Where PyTorch has the op, its answer is
compared too (torch_check below), so that a case is not one runtime's opinion. Inputs without contents are made by
formula, here and in tests/conformance/test_op_cases.c.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
TYPES = {"float32": (TensorProto.FLOAT, np.float32), "float64": (TensorProto.DOUBLE, np.float64),
         "int64": (TensorProto.INT64, np.int64), "int32": (TensorProto.INT32, np.int32)}


def formula(shape, k):
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((i * 7919 + k * 104729 + 17) % 2003 - 1001) / 1024).astype(np.float32).reshape(shape)


def tensor(text, k):
    """(dtype, array) of input k; None if absent."""
    if text == "-":
        return None
    name, rest = text.split(":", 1)
    dims, _, values = rest.partition("=")
    shape = [int(d) for d in dims.split(",") if d]
    dtype = TYPES[name][1]
    if "=" in text:
        return np.array([float(v) for v in values.split(",") if v], dtype=dtype).reshape(shape)
    return formula(shape, k).astype(dtype)


def parse(line):
    words = line.split()
    at = words.index("attr") if "attr" in words else len(words)
    attrs = {}
    for w in words[at + 1:]:
        name, _, rest = w.partition("=")
        kind, _, value = rest.partition(":")
        attrs[name] = {"i": int, "f": float, "s": str, "ints": lambda v: [int(x) for x in v.split(",")],
                       "floats": lambda v: [float(x) for x in v.split(",")],
                       "strings": lambda v: v.split(",")}[kind](value)
    return words[0], int(words[1]), [tensor(t, k) for k, t in enumerate(words[3:at])], attrs


def model(line):
    op, n_out, ins, attrs = parse(line)
    names = ["" if x is None else f"i{k}" for k, x in enumerate(ins)]
    inputs, weights = [], []
    for name, x, text in zip(names, ins, line.split()[3:]):
        if x is None:
            continue
        kind = [t for t, d in TYPES.values() if d == x.dtype.type][0]
        if "=" in text:
            weights.append(numpy_helper.from_array(x, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, kind, x.shape))
    outs = [f"o{i}" for i in range(n_out)]
    out_type = [t for t, d in TYPES.values() if d == ins[0].dtype.type][0]
    if op.endswith("Window"):
        out_type = TensorProto.FLOAT
    node = helper.make_node(op, names, outs, **attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info(o, out_type, None) for o in outs],
                              weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RUNNER = """
const ort = require('onnxruntime-node'), fs = require('fs');
const arrays = {float32: Float32Array, float64: Float64Array, int32: Int32Array};
(async () => {
  const out = [];
  for (const c of JSON.parse(fs.readFileSync(process.argv[2]))) {
    try {
      const s = await ort.InferenceSession.create(c.model, {logSeverityLevel: 3});
      const feeds = {};
      for (const f of c.feeds)
        feeds[f.name] = new ort.Tensor(f.type, f.type === 'int64' ? BigInt64Array.from(f.data.map(BigInt))
                                                                  : arrays[f.type].from(f.data), f.dims);
      const r = await s.run(feeds);
      out.push(s.outputNames.map(n => ({dims: r[n].dims, data: Array.from(r[n].data, Number)})));
    } catch (e) { out.push(String(e)); }
  }
  console.log(JSON.stringify(out));
})();
"""


def run_all(lines, folder):
    with tempfile.TemporaryDirectory() as tmp:
        cases = []
        for k, line in enumerate(lines):
            m = model(line)
            path = f"{tmp}/{k}.onnx"
            onnx.save(m, path)
            feeds = []
            for i, (x, text) in enumerate(zip(parse(line)[2], line.split()[3:])):
                if x is not None and "=" not in text:
                    feeds.append({"name": f"i{i}", "type": x.dtype.name, "dims": list(x.shape),
                                  "data": [float(v) if x.dtype.kind == "f" else int(v) for v in x.ravel()]})
            cases.append({"model": path, "feeds": feeds})
        pathlib.Path(f"{tmp}/cases.json").write_text(json.dumps(cases))
        pathlib.Path(f"{tmp}/run.js").write_text(RUNNER)
        text = subprocess.run(["node", f"{tmp}/run.js", f"{tmp}/cases.json"], check=True, capture_output=True,
                              env={"NODE_PATH": f"{folder}/node_modules", "PATH": "/usr/bin:/bin"}).stdout
    return json.loads(text)


# ---- cases ----

def rnn_lines():
    lines = []
    for op, gates, outs in (("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 2)):
        acts = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
        for direction in ("forward", "reverse", "bidirectional"):
            dirs = 2 if direction == "bidirectional" else 1
            # Shapes: sequence 5, batch 3, input 4, hidden 6.
            head = f"{op} {outs} in float32:5,3,4 float32:{dirs},{gates * 6},4 float32:{dirs},{gates * 6},6"
            bias, state = f"float32:{dirs},{gates * 12}", f"float32:{dirs},3,6"
            attr = f"attr hidden_size=i:6 direction=s:{direction}"
            lines.append(f"{head} {attr}")
            lines.append(f"{head} {bias} {attr}")
            lines.append(f"{head} {bias} int32:3=5,2,3 {state} {attr}")
            lines.append(f"{head} - int32:3=1,5,4 {attr}")
            if op == "LSTM":
                lines.append(f"{head} {bias} - {state} {state} float32:{dirs},18 {attr}")
                lines.append(f"{head} {bias} int32:3=4,5,1 {state} {state} float32:{dirs},18 {attr} input_forget=i:1")
            if op == "GRU":
                lines.append(f"{head} {bias} - {state} {attr} linear_before_reset=i:1")
                lines.append(f"{head} {bias} int32:3=4,5,1 {state} {attr} linear_before_reset=i:1")
            lines.append(f"{head} {bias} - {state} {attr} clip=f:0.25")
            # Gates stay bounded: others let the state grow beyond what f32 can compare.
            names = [("HardSigmoid", "Softsign", "Relu"), ("Affine", "LeakyRelu", "ScaledTanh"),
                     ("Sigmoid", "ThresholdedRelu", "Elu"), ("Sigmoid", "Softplus", "HardSigmoid")]
            if op == "RNN":
                names = [(n,) for n in ("Sigmoid", "Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
                                        "HardSigmoid", "Elu", "Softsign", "Softplus")]
            for pick in names:
                used = list(pick[:acts]) * dirs
                alphas = [0.5 if n == "ThresholdedRelu" else 0.375 for n in used
                          if n not in ("Softsign", "Relu", "Softplus")]
                betas = [0.25 for n in used if n in ("HardSigmoid", "Affine", "ScaledTanh")]
                text = f"{head} {bias} - {state} {attr} activations=strings:{','.join(used)}"
                if alphas:
                    text += " activation_alpha=floats:" + ",".join(map(str, alphas))
                if betas:
                    text += " activation_beta=floats:" + ",".join(map(str, betas))
                lines.append(text)
    lines.append("LSTM 3 in float32:7,1,20 float32:1,160,20 float32:1,160,40 float32:1,320 attr hidden_size=i:40")
    lines.append("GRU 2 in float32:7,1,20 float32:1,120,20 float32:1,120,40 float32:1,240 attr hidden_size=i:40")
    return lines


def deconv_lines():
    lines = []
    for x, w, attr in (
            ("1,4,5", "4,3,3", ""), ("2,4,5", "4,3,3", "strides=ints:3 pads=ints:1,0 output_padding=ints:2"),
            ("2,4,5,6", "4,3,3,2", ""), ("2,4,5,6", "4,3,2,2", "strides=ints:2,2"),
            ("2,4,5,6", "4,3,4,4", "strides=ints:2,2 pads=ints:1,1,1,1"),
            ("1,4,5,6", "4,3,3,3", "strides=ints:2,3 pads=ints:0,1,2,1 output_padding=ints:1,2"),
            ("1,4,5,6", "4,3,3,2", "dilations=ints:2,3 strides=ints:1,2 pads=ints:1,0,2,1"),
            ("1,4,5,6", "4,3,3,3", "group=i:2 strides=ints:2,2 pads=ints:1,1,1,1"),
            ("1,4,5,6", "4,1,3,3", "group=i:4 strides=ints:2,2 pads=ints:1,1,1,1 output_padding=ints:1,1"),
            ("1,4,5,6", "4,3,1,1", "strides=ints:3,2"),
            ("1,4,3,3", "4,3,3,3", "strides=ints:2,2 output_shape=ints:6,6"),
            ("1,4,3,3", "4,3,3,3", "strides=ints:2,3 output_shape=ints:4,9"),
            ("1,4,3,3", "4,3,3,3", "strides=ints:2,2 auto_pad=s:VALID"),
            ("1,4,3,4,2", "4,2,2,3,2", "strides=ints:2,1,2 pads=ints:1,0,0,0,1,1"),
            ("1,6,3,3,3", "6,2,2,2,2", "group=i:3 strides=ints:2,2,2"),
            ("2,24,6,8", "24,16,3,3", "strides=ints:2,2 pads=ints:1,1,1,1 output_padding=ints:1,1")):
        tail = f" attr {attr}" if attr else ""
        group = int(attr.split("group=i:")[1].split()[0]) if "group" in attr else 1
        oc = int(w.split(",")[1]) * group
        lines.append(f"ConvTranspose 1 in float32:{x} float32:{w}{tail}")
        lines.append(f"ConvTranspose 1 in float32:{x} float32:{w} float32:{oc}{tail}")
    return lines


def resize_lines():
    lines = []
    shapes = (("1,2,4,5", "1,2,7,3"), ("1,1,6,4", "1,1,3,9"), ("1,2,4,5", "1,2,4,1"), ("1,1,3,3", "1,1,6,6"))
    for coord in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        for x, size in shapes:
            for mode in ("linear", "cubic", "nearest"):
                sizes = f"Resize 1 in float32:{x} - - int64:4={size} attr mode=s:{mode}"
                tail = f"coordinate_transformation_mode=s:{coord}"
                if mode == "nearest":
                    for r in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                        lines.append(f"{sizes} {tail} nearest_mode=s:{r}")
                else:
                    lines.append(f"{sizes} {tail}")
        for scales in ("1,1,2,1.5", "1,1,0.6,2.7", "1,1,0.5,0.25"):
            for mode in ("linear", "cubic", "nearest"):
                lines.append(f"Resize 1 in float32:1,2,10,12 - float32:4={scales} attr mode=s:{mode} "
                             f"coordinate_transformation_mode=s:{coord} nearest_mode=s:floor")
    for mode in ("linear", "cubic", "nearest"):
        lines.append(f"Resize 1 in float32:1,2,8,8 float32:8=0,0,0.25,-0.25,1,1,0.75,1.5 - int64:4=1,2,5,7 attr "
                     f"mode=s:{mode} coordinate_transformation_mode=s:tf_crop_and_resize extrapolation_value=f:10.5")
    lines.append("Resize 1 in float32:1,2,5,6 - - int64:4=1,2,9,4 attr mode=s:cubic cubic_coeff_a=f:-0.5 "
                 "exclude_outside=i:1")
    lines.append("Resize 1 in float32:1,2,3,4,5 - - int64:5=1,2,5,7,4 attr mode=s:linear")
    lines.append("Resize 1 in float32:1,2,3,4,5 - - int64:5=1,2,5,7,4 attr mode=s:nearest")
    lines.append("Resize 1 in float32:1,2,6 - - int64:3=1,2,11 attr mode=s:nearest")
    lines.append("Resize 1 in float32:1,6,5,3 - float32:4=1,2,2,1 attr mode=s:linear")
    lines.append("Resize 1 in float32:1,4,15,20 - float32:4=1,1,2,2 attr mode=s:nearest "
                 "coordinate_transformation_mode=s:asymmetric nearest_mode=s:floor")
    return lines


def other_lines():
    lines = [f"Einsum 1 in {ins} attr equation=s:{eq}" for ins, eq in (
        ("float32:3,4 float32:4,5", "ij,jk->ik"), ("float32:3,4 float32:4,5", "ij,jk"),
        ("float32:2,3,4,5 float32:2,3,6,5", "bhid,bhjd->bhij"), ("float32:2,3,4,6 float32:2,3,6,5", "bhij,bhjd->bhid"),
        ("float32:2,4,3,5 float32:3,5,7", "blhd,hdo->blo"), ("float32:3,4,4", "...ii->...i"), ("float32:4,4", "ii"),
        ("float32:2,3,4", "...ij->...ji"), ("float32:2,3,4 float32:4,5", "...i,ij->...j"),
        ("float32:2,3 float32:3,4 float32:4,2", "ab,bc,ca->"), ("float32:3 float32:4", "i,j->ij"),
        ("float32:2,3,4", "ijk->kj"), ("float32:2,3,4", "ijk->"), ("float64:2,3,4 float64:2,4,5", "bij,bjk->bik"),
        ("float32:2,1,4 float32:3,4,5", "...ij,...jk->...ik"), ("float32:2,3,4 float32:2,3,4", "bij,bij->b"))]
    for mode in ("bilinear", "nearest", "bicubic"):
        for pad in ("zeros", "border", "reflection"):
            for align in (0, 1):
                attr = f"attr mode=s:{mode} padding_mode=s:{pad} align_corners=i:{align}"
                lines.append(f"GridSample 1 in float32:2,3,5,4 float32:2,6,7,2 {attr}")
                lines.append(f"GridSample 1 in float32:1,2,5,4 float32:1,2,3,2=-3.1,0.2,1.7,-2.2,0.4,5.3,9.1,-9.2,-1,1,"
                             f"0.1,-0.7 {attr}")
    rois = "float32:3,4=0,0,6.5,5.25,1.5,2,7,7.75,-1,-2,3,9"
    for attr in ("sampling_ratio=i:2", "sampling_ratio=i:0", "sampling_ratio=i:3 spatial_scale=f:0.5",
                 "coordinate_transformation_mode=s:output_half_pixel sampling_ratio=i:2",
                 "coordinate_transformation_mode=s:output_half_pixel"):
        lines.append(f"RoiAlign 1 in float32:2,3,8,9 {rois} int64:3=0,1,1 attr output_height=i:3 output_width=i:2 {attr}")
    lines.append("MaxRoiPool 1 in float32:2,3,8,9 float32:3,5=0,0,0,6,5,1,1,2,7,7,1,3,3,3,3 attr pooled_shape=ints:3,2")
    lines.append("MaxRoiPool 1 in float32:2,3,8,9 float32:2,5=0,0,0,12,11,1,2,4,14,15 attr pooled_shape=ints:2,4 "
                 "spatial_scale=f:0.5")
    lines.append("MaxUnpool 1 in float32:1,1,2,2 int64:1,1,2,2=5,7,13,15 attr kernel_shape=ints:2,2 strides=ints:2,2")
    lines.append("MaxUnpool 1 in float32:1,1,2,2 int64:1,1,2,2=6,8,18,24 int64:4=1,1,5,5 attr kernel_shape=ints:2,2 "
                 "strides=ints:2,2")
    for attr in ("kernel_shape=ints:3,2", "kernel_shape=ints:3,3 strides=ints:2,2 pads=ints:1,1,1,1 p=i:3",
                 "kernel_shape=ints:2,2 auto_pad=s:SAME_UPPER p=i:1"):
        lines.append(f"LpPool 1 in float32:2,3,7,6 attr {attr}")
    lines.append("GlobalLpPool 1 in float32:2,3,7,6 attr p=i:3")
    lines.append("ReverseSequence 1 in float32:4,3,2 int64:3=4,1,2")
    lines.append("ReverseSequence 1 in float32:4,3,2 int64:4=3,1,2,3 attr batch_axis=i:0 time_axis=i:1")
    lines += [f"DFT 1 in {x} attr {attr}" for x, attr in (
        ("float32:2,9,1", "axis=i:1"), ("float32:2,9,2", "axis=i:1 inverse=i:1"), ("float32:2,8,1", "onesided=i:1"),
        ("float32:2,8,5,2", "axis=i:2"), ("float32:2,8,1 int64:=5", "axis=i:1"), ("float32:2,8,1 int64:=12", "axis=i:1"))]
    lines.append("STFT 1 in float32:2,40,1 int64:=6 float32:16 int64:=16")
    lines.append("STFT 1 in float32:2,40,1 int64:=5 - int64:=9 attr onesided=i:0")
    for w in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        lines += [f"{w} 1 in int64:=11 attr periodic=i:{p}" for p in (0, 1)]
    return lines


# ---- a second opinion ----

def torch_rnn(op, ins, attrs):
    if set(attrs) - {"hidden_size", "direction", "linear_before_reset"} or attrs.get("direction") == "reverse":
        return None
    if len(ins) > 4 or (op == "GRU" and not attrs.get("linear_before_reset")):
        return None
    x, w, r = (torch.tensor(v) for v in ins[:3])
    hidden, dirs = attrs["hidden_size"], w.shape[0]
    gates = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}[op]  # torch: i f g o, r z n
    rows = torch.cat([torch.arange(g * hidden, (g + 1) * hidden) for g in gates])
    m = getattr(torch.nn, op)(x.shape[2], hidden, bidirectional=dirs == 2)
    b = torch.tensor(ins[3]) if len(ins) > 3 and ins[3] is not None else torch.zeros(dirs, 2 * w.shape[1])
    for d in range(dirs):
        tail = "_l0" + ("_reverse" if d else "")
        for name, v in (("weight_ih", w[d]), ("weight_hh", r[d]), ("bias_ih", b[d, :w.shape[1]]),
                        ("bias_hh", b[d, w.shape[1]:])):
            getattr(m, name + tail).data = v[rows]
    with torch.no_grad():
        y = m(x)[0]
    return y.reshape(y.shape[0], y.shape[1], dirs, hidden).permute(0, 2, 1, 3).numpy()


def torch_check(line):
    """PyTorch's first output, None where it has no such op."""
    op, _, ins, attrs = parse(line)
    t = [None if v is None else torch.tensor(v) for v in ins]
    if op in ("LSTM", "GRU", "RNN"):
        return torch_rnn(op, ins, attrs)
    if op == "ConvTranspose" and not set(attrs) & {"output_shape", "auto_pad"}:
        n = t[0].dim() - 2
        pads = attrs.get("pads", [0] * 2 * n)
        if pads[:n] != pads[n:]:
            return None
        extra = attrs.get("output_padding", 0)
        f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        return f(t[0], t[1], t[2] if len(t) > 2 else None, attrs.get("strides", 1), pads[:n], extra,
                 attrs.get("group", 1), attrs.get("dilations", 1)).numpy()
    if op == "Einsum":
        return torch.einsum(attrs["equation"], *t).numpy()
    if op == "GridSample":
        return F.grid_sample(t[0], t[1], attrs["mode"], attrs["padding_mode"], bool(attrs["align_corners"])).numpy()
    if op == "Resize" and t[0].dim() == 4 and len(t) == 4 and attrs["mode"] != "nearest" and "exclude_outside" not in attrs:
        align = attrs.get("coordinate_transformation_mode") == "align_corners"
        if attrs.get("coordinate_transformation_mode", "half_pixel") in ("align_corners", "half_pixel"):
            mode = {"linear": "bilinear", "cubic": "bicubic"}[attrs["mode"]]
            return F.interpolate(t[0], size=[int(v) for v in t[3][2:]], mode=mode, align_corners=align).numpy()
    return None


def main():
    lines = rnn_lines() + deconv_lines() + resize_lines() + other_lines()
    results = run_all(lines, sys.argv[1])
    refused, checked, kept = [], 0, []
    for line, r in zip(lines, results):
        if isinstance(r, str):
            refused.append(f"{line}\n    {r.splitlines()[0][:200]}")
            continue
        kept.append((line, r))
        other = torch_check(line)
        if other is not None:
            y = np.array(r[0]["data"]).reshape(r[0]["dims"])
            checked += 1
            if y.shape != other.shape or np.abs(y - other).max() > 1e-5 * np.abs(other).max():
                print("left out, PyTorch differs:", line)
                kept.pop()
    with open(HERE / "op_cases.txt", "w") as f:
        f.write("# Made by make_op_cases.py with ONNX Runtime. A line of op_line.h, then its outputs.\n")
        for line, r in kept:
            f.write(f"case {line}\n")
            for o in r:
                f.write("= " + ",".join(map(str, o["dims"])) + " : " + " ".join("nan" if v is None else f"{v:.7g}" for v in o["data"]) + "\n")
    print(f"{len(kept)} cases, {checked} also compared with PyTorch, {len(refused)} not run by ONNX Runtime")
    print("\n".join(refused))


if __name__ == "__main__":
    main()
