#!/usr/bin/env python3
"""Writes tests/golden/values (what onnx's own writer makes of tensors, sequences and optionals, in every list of numbers)
and the seeds of fuzz_onnx_value, the same with a first byte for the type. usage: make_values.py"""
import os

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

here = os.path.dirname(os.path.abspath(__file__))


def tensor(name, dtype, dims, values, raw=False):
    return helper.make_tensor(name, dtype, dims, values, raw)


def sequence(kind, field, items):
    s = onnx.SequenceProto(elem_type=kind)
    getattr(s, field).extend(items)
    return s


def optional(kind=0, **value):
    return onnx.OptionalProto(elem_type=kind, **value)


a = tensor("a", T.FLOAT, [2, 3], [1, 2, 3, 4, 5, 6])
b = numpy_helper.from_array(np.arange(4, dtype="i8"), "b")
TENSOR, SEQUENCE, OPTIONAL = 0, 1, 2
files = {
    "float_list": (TENSOR, a),
    "float_raw": (TENSOR, numpy_helper.from_array(np.float32([[1.5, -2], [np.inf, 0]]))),
    "int64_list": (TENSOR, tensor("", T.INT64, [3], [-1, 0, 2**40])),
    "double_list": (TENSOR, tensor("", T.DOUBLE, [2], [1e300, -1])),
    "uint8_list": (TENSOR, tensor("", T.UINT8, [2, 2], [0, 1, 254, 255])),
    "bool_list": (TENSOR, tensor("", T.BOOL, [3], [True, False, True])),
    "half_list": (TENSOR, tensor("", T.FLOAT16, [2], [1.0, -0.5])),
    "uint64_list": (TENSOR, tensor("", T.UINT64, [1], [2**64 - 1])),
    "scalar": (TENSOR, tensor("", T.INT32, [], [-7])),
    "empty": (TENSOR, tensor("", T.FLOAT, [0, 3], [])),
    "strings": (TENSOR, tensor("", T.STRING, [2], [b"x", b"y"])),
    "sequence": (SEQUENCE, sequence(1, "tensor_values", [a, b])),
    "sequence_empty": (SEQUENCE, sequence(1, "tensor_values", [])),
    "sequence_nested": (SEQUENCE, sequence(3, "sequence_values", [sequence(1, "tensor_values", [b])])),
    "optional_tensor": (OPTIONAL, optional(1, tensor_value=a)),
    "optional_empty": (OPTIONAL, optional()),
    "optional_sequence": (OPTIONAL, optional(3, sequence_value=sequence(1, "tensor_values", [a, a]))),
}
values = os.path.join(here, "values")
corpus = os.path.join(here, "..", "fuzz", "corpus", "onnx_value")
for folder in (values, corpus):
    os.makedirs(folder, exist_ok=True)
for name, (kind, message) in files.items():
    data = message.SerializeToString(deterministic=True)
    with open(os.path.join(values, name + ".pb"), "wb") as f:
        f.write(data)
    with open(os.path.join(corpus, name), "wb") as f:
        f.write(bytes([kind]) + data)
