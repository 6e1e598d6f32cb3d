#!/usr/bin/python3
"""Models of control flow, sequences, data-dependent shapes and functions, exported by PyTorch, with its outputs, in the
layout of ONNX backend test data. Usage: make_dynamic.py [OUT, default tests/golden/dynamic]"""
import pathlib
import shutil
import sys
from typing import List

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

torch.manual_seed(7)
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "dynamic")


class Grow(nn.Module):
    """A Loop with a captured weight whose output grows with the input."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        h = torch.zeros(4)
        out: List[torch.Tensor] = []
        for i in range(x.size(0)):
            h = torch.tanh(h @ self.w + x[i])
            out.append(h)
        return torch.stack(out), h


class While(nn.Module):
    """Halves until the norm is small: the number of trips depends on data."""

    def forward(self, x):
        n = torch.zeros(1, dtype=torch.int64)
        while bool(x.abs().sum() > 1.0):
            x = x * 0.5
            n = n + 1
        return x, n


class Nested(nn.Module):
    """If inside Loop inside If, with values captured over all of them."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(3))
        self.b = nn.Parameter(torch.randn(3))

    def forward(self, x, steps):
        y = x
        if bool(x.sum() > 0):
            for i in range(int(steps)):
                if i % 2 == 0:
                    y = y + self.a * x
                else:
                    y = y - self.b
        else:
            y = y * self.b
        return y


class Select(nn.Module):
    """NonZero, a gather of as many rows as there are, and a product over them."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 6)

    def forward(self, x):
        keep = x[x[:, 0] > 0]
        y = torch.relu(self.lin(keep))
        return y, y.sum(0), torch.nonzero(x > 1)


class Pieces(nn.Module):
    """Sequences: split, change, put together."""

    def forward(self, x):
        parts = torch.split(x, 2, dim=1)
        out: List[torch.Tensor] = []
        for p in parts:
            out.append(p * p.size(1))
        return torch.cat(out, dim=1)


class Gate(nn.Module):
    """Two rates, two paths, as voice detectors have them: a recurrent net in each branch."""

    def __init__(self):
        super().__init__()
        self.fast = nn.LSTM(8, 6, batch_first=True)
        self.slow = nn.LSTM(8, 6, batch_first=True)
        self.out = nn.Linear(6, 1)

    def forward(self, x, rate):
        if int(rate) == 16000:
            y, _ = self.fast(x)
        else:
            y, _ = self.slow(x[:, ::2])
        return torch.sigmoid(self.out(y[:, -1]))


class Norm(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.g = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.g


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(1e-3)
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.relu(self.lin(self.norm(x)))


class Stack(nn.Module):
    """Modules exported as functions that call functions, with attributes."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Norm(0.5))

    def forward(self, x):
        return self.blocks(x)


def write(name, model, args_list, script=True, opset=15, **kw):
    folder = OUT / f"test_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    model.eval()
    with torch.no_grad():
        subject = torch.jit.script(model) if script else model
        torch.onnx.export(subject, args_list[0], str(path), opset_version=opset, **kw)
        for k, args in enumerate(args_list):
            data = folder / f"test_data_set_{k}"
            data.mkdir()
            got = model(*args)
            for what, values in (("input", args), ("output", got if isinstance(got, tuple) else (got,))):
                for i, v in enumerate(values):
                    proto = numpy_helper.from_array(np.array(v.numpy(), order="C"), f"{what}_{i}")
                    (data / f"{what}_{i}.pb").write_bytes(proto.SerializeToString())
    m = onnx.load(str(path))
    m.doc_string = ""
    for graph in [m.graph]:
        for node in graph.node:
            node.doc_string = ""
    onnx.save(m, str(path))
    print(name, [n.op_type for n in m.graph.node], [f.name for f in m.functions])


def axes(**names):
    return {"input_names": ["x"], "dynamic_axes": {"x": names.get("x", {0: "n"})}}


write("loop_grows", Grow(), [(torch.randn(5, 4),), (torch.randn(1, 4),)], **axes())
write("while", While(), [(torch.randn(7) * 30,), (torch.zeros(7),)])
write("nested", Nested(), [(torch.ones(3), torch.tensor(5)), (-torch.ones(3), torch.tensor(5)),
                           (torch.ones(3), torch.tensor(0))])
write("select", Select(), [(torch.randn(9, 5) * 2,), (-torch.ones(4, 5),)], script=False, **axes())
write("pieces", Pieces(), [(torch.randn(3, 6),), (torch.randn(3, 7),)], **axes(x={0: "n", 1: "m"}))
write("gate", Gate(), [(torch.randn(2, 10, 8), torch.tensor(16000)), (torch.randn(2, 10, 8), torch.tensor(8000))])
write("functions", Stack(), [(torch.randn(4, 6),)], script=False, export_modules_as_functions={Norm, Block})
