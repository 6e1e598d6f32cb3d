#!/usr/bin/python3
"""check_onnx.py FILE...: what ONNX itself says of a model: the checker with full shape inference. Exit 1 if it objects.
check_onnx.py --same A B: also that both hold the same graph (inputs, outputs, weights by value)."""
import sys

import numpy as np
import onnx
from onnx import numpy_helper


def load(path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def names(infos):
    return [(i.name, i.type.tensor_type.elem_type,
             [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]) for i in infos]


def weights(model):
    out = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            out[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return out


def main():
    args = sys.argv[1:]
    if args[0] != "--same":
        for path in args:
            load(path)
        return
    a, b = load(args[1]), load(args[2])
    initializers = {i.name for i in a.graph.initializer}
    assert names(i for i in a.graph.input if i.name not in initializers) == names(b.graph.input), "inputs differ"
    assert names(a.graph.output) == names(b.graph.output), "outputs differ"
    wa, wb = weights(a), weights(b)
    for name, w in wa.items():
        assert name in wb and w.dtype == wb[name].dtype and w.shape == wb[name].shape and np.array_equal(w, wb[name]), name
    ops = [n.op_type for n in a.graph.node if n.op_type != "Constant"]
    assert ops == [n.op_type for n in b.graph.node], "nodes differ"


if __name__ == "__main__":
    main()
