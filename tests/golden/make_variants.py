#!/usr/bin/python3
"""One small net in the many ways in which real files hold a net: every opset that PyTorch writes, weights in Constant
nodes, beside the file, in fp16 behind Casts, as inputs with defaults, NHWC behind Transposes, odd names, inputs without
a shape. All of them must give what PyTorch computes in f64.

Usage: make_variants.py FOLDER     (the same folder and layout as make_zoo.py)
"""
import copy
import hashlib
import os
import shutil
import sys
import warnings

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto as T, helper, numpy_helper

from make_models import MIN_DIFFERENCE, images, relative

warnings.filterwarnings("ignore")


class Net(torch.nn.Module):
    """Of everything whose ONNX form changed between opsets 7 and 17, with shape arithmetic where exporters make it."""

    def __init__(self, opset):
        super().__init__()
        self.opset = opset
        self.stem = torch.nn.Conv2d(3, 12, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(12)
        self.depth = torch.nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.squeeze = torch.nn.Linear(12, 4)
        self.excite = torch.nn.Linear(4, 12)
        self.point = torch.nn.Conv2d(24, 16, 1)
        self.attend = torch.nn.Linear(16, 48)
        self.layer = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 10)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / 1.5
        x = F.relu6(self.norm(self.stem(x)))
        x = F.pad(x, (1, 2, 0, 1))
        x = F.max_pool2d(x, 3, 2, 1)
        y = F.leaky_relu(self.depth(x), 0.1)
        s = y.mean((2, 3))
        s = torch.sigmoid(self.excite(F.relu(self.squeeze(s))))
        y = y * s.unsqueeze(-1).unsqueeze(-1)
        y = torch.cat([y, F.elu(x)], 1)
        a, b = y.chunk(2, 1)
        y = torch.cat([b, a.clamp(min=-0.5)], 1)
        if self.opset >= 11:  # since Resize can say how
            y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        if self.opset >= 9:  # Upsample with scales as an input
            y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        y = F.avg_pool2d(self.point(y), 2)
        n, c, h, w = y.shape
        t = y.flatten(2).permute(0, 2, 1)
        if self.opset >= 11:  # Slice with ends as an input
            t = t[:, : h * w - 1]
        q, k, v = self.attend(t).view(n, -1, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        t = t + (torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v).transpose(1, 2).reshape(n, -1, 16)
        t = self.layer(F.gelu(t) if self.opset >= 9 else torch.tanh(t))
        return torch.log_softmax(self.head(t.max(1).values + t.sum(1) / 10), 1)


def export(model, x, path, opset):
    torch.onnx.export(model, x, path, opset_version=opset, input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, do_constant_folding=opset % 2 == 1)


def weights_in_constants(m):
    made = [helper.make_node("Constant", [], [w.name], value=w) for w in m.graph.initializer]
    del m.graph.initializer[:]
    nodes = made + list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def weights_as_inputs(m):
    """IR 3: every initialiser is an input too; what is given is a default."""
    m.ir_version = 3
    for w in m.graph.initializer:
        m.graph.input.append(helper.make_tensor_value_info(w.name, w.data_type, w.dims))


def weights_in_half(m):
    """fp16 weights, each behind a Cast, where fp16 holds the very values."""
    casts = []
    for w in m.graph.initializer:
        a = numpy_helper.to_array(w)
        if a.dtype == np.float32 and (a.astype("f2") == a).all():
            half = numpy_helper.from_array(a.astype("f2"), w.name + "_half")
            casts.append(helper.make_node("Cast", [half.name], [w.name], to=T.FLOAT))
            w.CopyFrom(half)
    nodes = casts + list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def all_in_half(m):
    """As converters make fp16 models: Casts at the edges, everything inside is fp16 but the scales of Resize."""
    scales = {name for node in m.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    for w in m.graph.initializer:
        a = numpy_helper.to_array(w)
        if a.dtype == np.float32 and w.name not in scales:
            w.CopyFrom(numpy_helper.from_array(a.astype("f2"), w.name))
    for node in m.graph.node:
        for a in node.attribute:
            if a.name == "to" and a.i == T.FLOAT:
                a.i = T.FLOAT16
            if a.type == onnx.AttributeProto.TENSOR and a.t.data_type == T.FLOAT and node.output[0] not in scales:
                a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype("f2")))
        node.input[:] = ["x_half" if n == "x" else n for n in node.input]
        node.output[:] = ["y_half" if n == "y" else n for n in node.output]
    m.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x_half"], to=T.FLOAT16))
    m.graph.node.append(helper.make_node("Cast", ["y_half"], ["y"], to=T.FLOAT))
    del m.graph.value_info[:]


def quantised(m):
    """MatMul of a weight as dynamic quantisation writes it: DynamicQuantizeLinear, MatMulInteger, scales."""
    weights = {w.name: w for w in m.graph.initializer}
    nodes = []
    for node in m.graph.node:
        w = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if w is None:
            nodes.append(node)
            continue
        a, p = numpy_helper.to_array(w), node.output[0] + "_"
        low, high = min(a.min(), 0), max(a.max(), 0)
        scale = np.float32((high - low) / 255)
        zero = np.uint8(np.round(-low / scale))
        q = np.clip(np.round(a / scale) + zero, 0, 255).astype("u1")
        for name, value in (("wq", q), ("ws", scale), ("wz", zero)):
            m.graph.initializer.append(numpy_helper.from_array(np.asarray(value), p + name))
        nodes += [helper.make_node("DynamicQuantizeLinear", [node.input[0]], [p + "q", p + "s", p + "z"]),
                  helper.make_node("MatMulInteger", [p + "q", p + "wq", p + "z", p + "wz"], [p + "i"]),
                  helper.make_node("Cast", [p + "i"], [p + "f"], to=T.FLOAT),
                  helper.make_node("Mul", [p + "s", p + "ws"], [p + "sw"]),
                  helper.make_node("Mul", [p + "f", p + "sw"], [node.output[0]])]
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def channels_last(m):
    for node in m.graph.node:
        for i, name in enumerate(node.input):
            if name == "x":
                node.input[i] = "x_nchw"
    m.graph.node.insert(0, helper.make_node("Transpose", ["x"], ["x_nchw"], perm=[0, 3, 1, 2]))
    d = m.graph.input[0].type.tensor_type.shape.dim
    d[1].dim_value, d[2].dim_value, d[3].dim_value = d[2].dim_value, d[3].dim_value, d[1].dim_value


def odd_names(m):
    odd = {}

    def new(name):
        if name and name not in odd:
            odd[name] = ("", " ", "/", "weights:0", "a=b", "\u03b1\u03b2", "..", "%s", "x" * 300, "\\", '"', "'", "\t")[
                len(odd) % 13] + f"#{len(odd)}"
        return odd.get(name, "")

    for value in (*m.graph.input, *m.graph.output, *m.graph.initializer):
        value.name = new(value.name)
    for k, node in enumerate(m.graph.node):
        node.name = ("", "same", "layer/conv:0", "\u00fc")[k % 4]
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = new(name)


def unused_domains(m):
    for domain, version in (("ai.onnx.ml", 3), ("com.microsoft", 1), ("org.pytorch.aten", 1), ("com.acme", 77)):
        m.opset_import.append(helper.make_opsetid(domain, version))


def no_shapes(m):
    for value in (*m.graph.input, *m.graph.output):
        value.type.tensor_type.ClearField("shape")
    del m.graph.value_info[:]


def wrong_value_info(m):
    """Shapes of inner values that are old or wrong, as tools leave them behind."""
    for node in list(m.graph.node)[:20]:
        m.graph.value_info.append(helper.make_tensor_value_info(node.output[0], T.INT64, [1, 2, 3]))


def dead_branch(m):
    """Nodes that nobody reads."""
    m.graph.node.append(helper.make_node("Relu", ["x"], ["unread"]))
    m.graph.node.append(helper.make_node("Identity", ["x"], ["unread_too"]))


# fp16 has 11 bits and every node rounds to them; uint8 has 8.
BOUNDS = {"half_inside": "1e-2", "quantised": "5e-2"}

EDITS = {
    "constants": weights_in_constants,
    "defaults": weights_as_inputs,
    "half": weights_in_half,
    "half_inside": all_in_half,
    "nhwc": channels_last,
    "quantised": quantised,
    "names": odd_names,
    "domains": unused_domains,
    "unshaped": no_shapes,
    "dead": dead_branch,
    "value_info": wrong_value_info,
}


def write(folder, name, m, x, y, external=False):
    path = os.path.join(folder, "variant_" + name)
    data = os.path.join(path, "test_data_set_0")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(data)
    if external:
        onnx.save(m, os.path.join(path, "model.onnx"), save_as_external_data=True, all_tensors_to_one_file=name[-1] != "s",
                  location="weights.bin" if name[-1] != "s" else None, size_threshold=0)
    else:
        onnx.save(m, os.path.join(path, "model.onnx"))
    for kind, a in (("input", x), ("output", y)):
        with open(os.path.join(data, kind + "_0.pb"), "wb") as f:
            f.write(numpy_helper.from_array(np.ascontiguousarray(a, "f4")).SerializeToString())
    if name in BOUNDS:
        with open(os.path.join(path, "bound"), "w") as f:
            f.write(BOUNDS[name])
    return path


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    folder = sys.argv[1]
    with open(__file__, "rb") as f:
        stamp = hashlib.sha256(f.read()).hexdigest() + f" torch {torch.__version__} onnx {onnx.__version__}"
    last = os.path.join(folder, "variant_externals", "stamp")
    if os.path.exists(last) and open(last).read() == stamp:
        return
    os.makedirs(folder, exist_ok=True)
    work = os.path.join(folder, "part.onnx")
    x = images(2, 24, 9)
    made = []
    for opsets in ((7, 8), (9, 10), range(11, 18)):
        torch.manual_seed(17)
        net = Net(opsets[0])
        net.train()(images(8, 24, 8))
        net.eval()
        with torch.no_grad():
            for p in net.parameters():  # what fp16 holds, so that one truth is enough
                p.copy_(p.half().float())
            y = copy.deepcopy(net).double()(x.double()).numpy()
        if relative(y[0], y[1]) < MIN_DIFFERENCE:
            sys.exit("outputs for two inputs hardly differ: a wrong net would pass")
        for opset in opsets:
            export(net, x, work, opset)
            made.append(write(folder, f"opset{opset}", onnx.load(work), x.numpy(), y))
    base = onnx.load(os.path.join(folder, "variant_opset13", "model.onnx"))
    for name, edit in EDITS.items():
        m = copy.deepcopy(base)
        edit(m)
        given = x.numpy().transpose(0, 2, 3, 1) if name == "nhwc" else x.numpy()
        made.append(write(folder, name, m, given, y))
    for name in ("external", "externals"):
        made.append(write(folder, name, copy.deepcopy(base), x.numpy(), y, external=True))
    os.remove(work)
    for path in made:
        with open(os.path.join(path, "stamp"), "w") as f:
            f.write(stamp)
    print(f"{len(made)} variants of one net, two inputs differ by {relative(y[0], y[1]):.2e}")


if __name__ == "__main__":
    main()
