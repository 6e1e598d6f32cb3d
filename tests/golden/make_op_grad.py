#!/usr/bin/python3
"""Writes op_grad.txt: single gradient ops (lines as in tests/unit/op_line.h) with PyTorch's answers in double.

Usage: make_op_grad.py. Inputs are made by formula as in make_op_cases.py, as float32 (or float64) numbers.
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent


def formula(shape, k):
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return torch.tensor((((i * 7919 + k * 104729 + 17) % 2003 - 1001) / 1024).reshape(shape)).double()


def ints(values):
    return ",".join(str(v) for v in values)


def tensor(kind, t):
    return f"{kind}:{ints(t.shape)}"


def listed(shape):
    return f"int64:{len(shape)}={ints(shape)}"


def both(pads, n):
    """PyTorch's order for F.pad: last axis first, its begin and end."""
    out = []
    for a in reversed(range(n)):
        out += [pads[a], pads[n + a]]
    return out


def same_pads(size, k, s, d, upper):
    """What auto_pad SAME_* stands for."""
    begin, end = [], []
    for i in range(len(k)):
        out = -(-size[i] // s[i])
        total = max((out - 1) * s[i] + (k[i] - 1) * d[i] + 1 - size[i], 0)
        half = total // 2
        begin.append(half if upper else total - half)
        end.append(total - begin[-1])
    return begin + end


CASES = []


def emit(line, *outs):
    CASES.append((line, [o.detach().numpy() for o in outs]))


def conv(x, w, pads=None, s=None, d=None, group=1, auto=None, kind="float32"):
    n = len(x) - 2
    k = w[2:]
    s, d = s or [1] * n, d or [1] * n
    explicit = pads or [0] * 2 * n
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        explicit = same_pads(x[2:], k, s, d, auto == "SAME_UPPER")
    attrs = f"kernel_shape=ints:{ints(k)} strides=ints:{ints(s)} dilations=ints:{ints(d)} group=i:{group}"
    attrs += f" auto_pad=s:{auto}" if auto else f" pads=ints:{ints(explicit)}"
    fn = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[n]

    def run(xt, wt):
        return fn(F.pad(xt, both(explicit, n)), wt, None, s, 0, d, group)

    y = run(torch.zeros(x).double(), torch.zeros(w).double())
    # ConvGradInput: inputs 0 = dY, 1 = W; ConvGradWeight: 0 = X, 1 = dY
    xt, wt = torch.zeros(x).double().requires_grad_(), formula(w, 1)
    run(xt, wt).backward(formula(y.shape, 0))
    emit(f"ai.yoke.ConvGradInput 1 in {tensor(kind, y)} {tensor(kind, wt)} {listed(x)} attr {attrs}", xt.grad)
    xt, wt = formula(x, 0), torch.zeros(w).double().requires_grad_()
    run(xt, wt).backward(formula(y.shape, 1))
    emit(f"ai.yoke.ConvGradWeight 1 in {tensor(kind, xt)} {tensor(kind, y)} attr {attrs}", wt.grad)


def pool(x, k, pads=None, s=None, d=None, ceil=0, include=0, kind="float32"):
    n = len(x) - 2
    s, explicit = s or [1] * n, pads or [0] * 2 * n
    even = explicit[:n] == explicit[n:]
    attrs = f"kernel_shape=ints:{ints(k)} strides=ints:{ints(s)} pads=ints:{ints(explicit)} ceil_mode=i:{ceil}"
    most = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[n]
    mean = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[n]
    dil = d or [1] * n

    xt = formula(x, 1).requires_grad_()
    if even:
        y = most(xt, k, s, explicit[:n], dil, bool(ceil))
    else:
        y = most(F.pad(xt, both(explicit, n), value=-float("inf")), k, s, 0, dil, bool(ceil))
    y.backward(formula(y.shape, 0))
    emit(f"ai.yoke.MaxPoolGrad 1 in {tensor(kind, y)} {tensor(kind, xt)} attr {attrs} dilations=ints:{ints(dil)}",
         xt.grad)
    if d or (not even and not include):
        return
    xt = torch.zeros(x).double().requires_grad_()
    if even:
        y = mean(xt, k, s, explicit[:n], bool(ceil), bool(include))
    else:
        y = mean(F.pad(xt, both(explicit, n)), k, s, 0, bool(ceil))
    y.backward(formula(y.shape, 0))
    emit(f"ai.yoke.AveragePoolGrad 1 in {tensor(kind, y)} {listed(x)} attr {attrs} count_include_pad=i:{include}",
         xt.grad)


def batch_norm(x, epsilon, momentum, kind="float32"):
    c = x[1]
    xt, scale, shift = (formula(s, k) for k, s in enumerate((x, [c], [c])))
    mean, var = formula([c], 3), formula([c], 4)
    old = mean.clone(), var.clone()
    y = F.batch_norm(xt, mean, var, scale, shift, True, 1 - momentum, epsilon)
    dims = [0] + list(range(2, len(x)))
    stats = xt.mean(dims), 1 / torch.sqrt(xt.var(dims, unbiased=False) + epsilon)
    head = " ".join(tensor(kind, t) for t in (xt, scale, shift, *old))
    emit(f"ai.yoke.BatchNormTrain 5 in {head} attr epsilon=f:{epsilon} momentum=f:{momentum}", y, mean, var, *stats)


def batch_norm_grad(x, kind="float32"):
    """mean and 1/sqrt are inputs 3 and 4 by formula: what PyTorch's kernel computes from given statistics."""
    c = x[1]
    dy, xt, scale, mean, inverse = (formula(s, k) for k, s in enumerate((x, x, [c], [c], [c])))
    dx, dscale, db = torch.ops.aten.native_batch_norm_backward(dy, xt, scale, None, None, mean, inverse, True, 1e-5,
                                                               [True, True, True])
    head = " ".join(tensor(kind, t) for t in (dy, xt, scale, mean, inverse))
    emit(f"ai.yoke.BatchNormGrad 3 in {head}", dx, dscale, db)


def relu(shape, kind="float32"):
    x = formula(shape, 1).requires_grad_()
    torch.relu(x).backward(formula(shape, 0))
    emit(f"ai.yoke.ReluGrad 1 in {kind}:{ints(shape)} {kind}:{ints(shape)}", x.grad)


def main():
    conv([2, 3, 5, 7], [4, 3, 3, 3])
    conv([2, 9, 8, 7], [10, 9, 3, 3], [1, 1, 1, 1])
    conv([2, 16, 9, 9], [24, 16, 3, 3], [1, 1, 1, 1])
    conv([1, 8, 6, 5], [8, 8, 3, 3], [0, 2, 1, 3])
    conv([2, 3, 9, 8], [4, 3, 3, 3], [1, 1, 1, 1], [2, 2])
    conv([2, 8, 8, 8], [9, 8, 3, 3], [1, 1, 1, 1], [2, 2])
    conv([1, 3, 11, 10], [4, 3, 7, 7], [3, 3, 3, 3], [2, 2])
    conv([1, 3, 12, 12], [4, 3, 4, 4], None, [4, 4])
    conv([1, 3, 11, 13], [4, 3, 2, 2], None, [3, 4])
    conv([2, 5, 6, 6], [7, 5, 1, 1])
    conv([2, 17, 7, 7], [33, 17, 1, 1])
    conv([2, 5, 6, 7], [7, 5, 1, 1], None, [2, 2])
    conv([2, 5, 6, 7], [7, 5, 1, 1], [1, 0, 2, 1], [2, 1])
    conv([2, 6, 6, 7], [4, 3, 3, 3], [1, 1, 1, 1], None, None, 2)
    conv([1, 32, 6, 6], [32, 16, 3, 3], [1, 1, 1, 1], None, None, 2)
    conv([2, 6, 7, 7], [6, 1, 3, 3], [1, 1, 1, 1], None, None, 6)
    conv([2, 20, 7, 7], [20, 1, 5, 5], [2, 2, 2, 2], [2, 2], None, 20)
    conv([2, 3, 7, 7], [6, 1, 3, 3], [1, 1, 1, 1], [2, 1], None, 3)
    conv([2, 3, 9, 9], [4, 3, 3, 3], [2, 2, 2, 2], None, [2, 2])
    conv([2, 3, 9, 10], [4, 3, 3, 2], [2, 0, 1, 1], [2, 3], [2, 3])
    conv([2, 3, 8, 9], [4, 3, 3, 2], None, [2, 2], None, 1, "SAME_UPPER")
    conv([2, 3, 8, 9], [4, 3, 3, 2], None, [2, 2], None, 1, "SAME_LOWER")
    conv([2, 3, 8, 9], [4, 3, 3, 2], None, [2, 2], None, 1, "VALID")
    conv([2, 3, 11], [4, 3, 3], [1, 1])
    conv([2, 4, 11], [4, 2, 3], [2, 1], [2], [2], 2)
    conv([1, 2, 4, 5, 6], [3, 2, 2, 3, 3], [0, 1, 1, 1, 1, 1])
    conv([1, 4, 5, 5, 6], [4, 2, 3, 1, 3], [1, 0, 1, 0, 0, 1], [2, 1, 2], None, 2)
    conv([1, 3, 3, 3], [4, 3, 3, 3], [0, 0, 0, 0], [2, 2])
    conv([2, 3, 6, 7], [4, 3, 3, 3], [1, 1, 1, 1], kind="float64")
    for include in (0, 1):
        pool([2, 3, 8, 8], [2, 2], None, [2, 2], None, 0, include)
        pool([2, 3, 9, 8], [3, 3], [1, 1, 1, 1], [2, 2], None, 0, include)
        pool([2, 17, 7, 7], [3, 3], [1, 1, 1, 1], None, None, 0, include)
        pool([2, 3, 8, 9], [3, 2], [1, 1, 1, 1], [2, 2], None, 1, include)
    pool([2, 3, 8, 9], [3, 3], [0, 1, 2, 1], [2, 2], None, 0, 1)
    pool([2, 3, 8, 9], [3, 3], [1, 1, 1, 1], [2, 2], [2, 1], 0, 0)
    pool([2, 3, 11], [3], [1, 1], [2])
    pool([1, 2, 5, 6, 7], [2, 3, 2], None, [2, 2, 1])
    pool([1, 2, 6, 7], [2, 3], None, [1, 2], kind="float64")
    batch_norm([4, 5], 1e-5, 0.9)
    batch_norm([3, 5, 4, 6], 1e-3, 0.5)
    batch_norm([2, 17, 9], 1e-5, 0.9)
    batch_norm([2, 3, 2, 4, 3], 1e-5, 0.9)
    batch_norm([2, 3, 4], 1e-5, 0.75, "float64")
    batch_norm_grad([4, 5])
    batch_norm_grad([3, 5, 4, 6])
    batch_norm_grad([2, 17, 9])
    batch_norm_grad([2, 3, 4], "float64")
    relu([2, 3, 5, 7])
    relu([19], "float64")
    with open(HERE / "op_grad.txt", "w") as f:
        f.write("# Made by make_op_grad.py with PyTorch. A line of op_line.h, then its outputs.\n")
        for line, outs in CASES:
            f.write(f"case {line}\n")
            for o in outs:
                f.write(f"= {ints(o.shape)} : " + " ".join(f"{v:.8g}" for v in o.ravel()) + "\n")
    print(len(CASES), "cases")


if __name__ == "__main__":
    main()
