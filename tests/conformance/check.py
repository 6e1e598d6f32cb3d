#!/usr/bin/env python3
"""Judges what `yoke local check DATA --dump=DUMP` wrote, without yoke: reads expected and given outputs with onnx and
numpy, repeats every verdict (dtype and shape exact, floats within atol 1e-7 + rtol 1e-3, all else equal) and compares
it with yoke's. Prints where they disagree and ends with the counts; exit code 0 if they agree everywhere.

usage: check.py DATA DUMP"""
import json
import os
import sys

import numpy as np
import onnx
from onnx import numpy_helper

BF16 = onnx.TensorProto.BFLOAT16


def bits_of_bfloat16(t):
    if t.raw_data:
        return np.frombuffer(t.raw_data, "<u2").reshape(t.dims)
    return np.array(t.int32_data, "<u2").reshape(t.dims)


def tensor(t):
    """(dtype name, array of float64 or the dtype's own integers)"""
    if t.data_type == BF16:
        wide = bits_of_bfloat16(t).astype("<u4") << 16
        return "bfloat16", wide.view("<f4").astype("f8")
    a = numpy_helper.to_array(t)
    return a.dtype.name, a


def load(path, kind):
    message = {"tensor": onnx.TensorProto, "sequence": onnx.SequenceProto, "optional": onnx.OptionalProto}[kind]()
    with open(path, "rb") as f:
        message.ParseFromString(f.read())
    return message


def kind_of(type_proto):
    kind = type_proto.WhichOneof("value")
    return {"sequence_type": "sequence", "optional_type": "optional"}.get(kind, "tensor")


def declared_bfloat16(type_proto):
    return type_proto.HasField("tensor_type") and type_proto.tensor_type.elem_type == BF16


def members(message):
    """Members of a SequenceProto or an OptionalProto."""
    if isinstance(message, onnx.SequenceProto):
        return list(message.tensor_values) + list(message.sequence_values) + list(message.optional_values)
    for field in ("tensor_value", "sequence_value", "optional_value"):
        if message.HasField(field):
            return [getattr(message, field)]
    return []


def difference(got, want, bfloat16):
    """"" or what differs."""
    if isinstance(want, onnx.TensorProto) != isinstance(got, onnx.TensorProto):
        return "one is a tensor, the other is not"
    if not isinstance(want, onnx.TensorProto):
        a, b = members(got), members(want)
        if len(a) != len(b):
            return f"{len(a)} members, expected {len(b)}"
        return next((d for d in (difference(x, y, bfloat16) for x, y in zip(a, b)) if d), "")
    if bfloat16 and want.data_type == onnx.TensorProto.UINT16:
        want = onnx.TensorProto.FromString(want.SerializeToString())
        want.data_type = BF16
    (t, a), (u, b) = tensor(got), tensor(want)
    if t != u:
        return f"{t}, expected {u}"
    if a.shape != b.shape:
        return f"shape {a.shape}, expected {b.shape}"
    if not (t.startswith("float") or t == "bfloat16"):
        return "" if np.array_equal(a, b) else "elements differ"
    a, b = a.astype("f8"), b.astype("f8")
    with np.errstate(invalid="ignore"):
        close = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 1e-7 + 1e-3 * np.abs(b))
    return "" if close.all() else f"{np.count_nonzero(~close)} of {close.size} elements differ"


def judge(data, dump):
    """"" or what differs, over all data sets of one test."""
    model = onnx.load(os.path.join(data, "model.onnx"), load_external_data=False)
    k = 0
    while os.path.isdir(expected := os.path.join(data, f"test_data_set_{k}")):
        for i, info in enumerate(model.graph.output):
            given = os.path.join(dump, f"test_data_set_{k}", f"output_{i}.pb")
            if not os.path.exists(given):
                return f"no {given}"
            kind = kind_of(info.type)
            got, want = load(given, kind), load(os.path.join(expected, f"output_{i}.pb"), kind)
            if d := difference(got, want, declared_bfloat16(info.type)):
                return f"data set {k}, output '{info.name}': {d}"
        k += 1
    return "" if k else "no data set"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, dump = sys.argv[1:]
    count, disagree = {"passed": 0, "failed": 0, "skipped": 0}, 0
    with open(os.path.join(dump, "verdicts.jsonl")) as f:
        verdicts = [v for v in map(json.loads, f) if "test" in v]
    for v in verdicts:
        ours = "skipped"
        folder = data if os.path.exists(os.path.join(data, "model.onnx")) else os.path.join(data, v["test"])
        if v["verdict"] != "skipped":
            why = judge(folder, os.path.join(dump, v["test"]))
            ours = "failed" if why else "passed"
            if ours != v["verdict"]:
                print(f"{v['test']}: yoke says {v['verdict']}, onnx and numpy say {ours} {why}")
                disagree += 1
        count[ours] += 1
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if disagree else 0)


if __name__ == "__main__":
    main()
