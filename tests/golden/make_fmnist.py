#!/usr/bin/python3
"""Golden outputs of tests/data/fmnist_cnn.onnx: writes fmnist_x.npy (8 real test images, f32 x/255, NCHW) and
fmnist_y.npy (logits, computed in f64 from the file's weights, stored as f32) beside this script.

The graph is evaluated node by node from the ONNX file, with torch's f64 functions as the arithmetic. Needs Debian's
dataset-fashion-mnist; --check also prints the accuracy over the 10,000 test images (0.8956)."""
import gzip
import os
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = "/usr/share/datasets/fashion-mnist/"


def evaluate(model, x):
    v = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()).double() for i in model.graph.initializer}
    v[model.graph.input[0].name] = x.double()
    for node in model.graph.node:
        a = {at.name: onnx.helper.get_attribute_value(at) for at in node.attribute}
        i = [v[name] for name in node.input]
        if node.op_type == "Conv":
            p = a["pads"]
            assert p[:2] == p[2:] and a["group"] == 1
            y = F.conv2d(i[0], i[1], i[2], a["strides"], p[:2], a["dilations"])
        elif node.op_type == "MaxPool":
            assert not any(a["pads"]) and not a["ceil_mode"]
            y = F.max_pool2d(i[0], a["kernel_shape"], a["strides"])
        elif node.op_type == "Gemm":
            assert a["alpha"] == 1 and a["beta"] == 1 and a["transB"] == 1
            y = i[0] @ i[1].T + i[2]
        elif node.op_type == "Relu":
            y = i[0].clamp(min=0)
        elif node.op_type == "Flatten":
            y = i[0].flatten(a["axis"])
        else:
            sys.exit(f"unexpected op {node.op_type}")
        v[node.output[0]] = y
    return v[model.graph.output[0].name]


def main():
    with gzip.open(DATA + "t10k-images-idx3-ubyte.gz") as f:
        pixels = np.frombuffer(f.read()[16:], np.uint8).reshape(-1, 1, 28, 28)
    model = onnx.load(os.path.join(HERE, "..", "data", "fmnist_cnn.onnx"))
    x = pixels[:8].astype(np.float32) / np.float32(255)
    y = evaluate(model, torch.from_numpy(x)).numpy()
    np.save(os.path.join(HERE, "fmnist_x.npy"), x)
    np.save(os.path.join(HERE, "fmnist_y.npy"), y.astype(np.float32))
    if "--check" in sys.argv:
        with gzip.open(DATA + "t10k-labels-idx1-ubyte.gz") as f:
            labels = np.frombuffer(f.read()[8:], np.uint8)
        right = 0
        for n in range(0, len(pixels), 500):
            x = torch.from_numpy(pixels[n : n + 500].astype(np.float32) / np.float32(255))
            right += int((evaluate(model, x).argmax(1).numpy() == labels[n : n + 500]).sum())
        print(f"accuracy {right / len(pixels):.4f}")


if __name__ == "__main__":
    main()
