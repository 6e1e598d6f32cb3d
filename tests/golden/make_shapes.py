#!/usr/bin/python3
"""Writes shapes.txt: random nodes and the output shapes that ONNX's own shape inference gives them (or `error`).

One line a node:   Op n_out in TYPE:dims[=contents] ... [attr name=KIND:value ...] out TYPE:dims ... | error
`-` is an absent input; kinds are i, f, s, is. Run from anywhere; the file lands beside the script. Seeded."""
import os
import random

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper, shape_inference

R = random.Random(20240611)
NAMES = {T.FLOAT: "float32", T.INT64: "int64", T.BOOL: "bool", T.INT32: "int32", T.DOUBLE: "float64"}
NUMPY = {T.INT64: np.int64, T.INT32: np.int32, T.BOOL: np.bool_, T.FLOAT: np.float32, T.DOUBLE: np.float64}


def dims(rank, lo=1, hi=9):
    return [R.randint(lo, hi) for _ in range(rank)]


def x(shape, t=T.FLOAT):
    return (t, list(shape), None)


def ints(v, t=T.INT64):
    return (t, [len(v)], list(v))


def scalar(v, t=T.INT64):
    return (t, [], [v])


def infer(op, inputs, attrs, n_out):
    graph_in, init, names = [], [], []
    for i, e in enumerate(inputs):
        if e is None:
            names.append("")
            continue
        t, shape, content = e
        name = "i%d" % i
        names.append(name)
        if content is None:
            graph_in.append(helper.make_tensor_value_info(name, t, shape))
        else:
            init.append(numpy_helper.from_array(np.array(content, NUMPY[t]).reshape(shape), name))
    outs = ["o%d" % i for i in range(n_out)]
    node = helper.make_node(op, names, outs, **attrs)
    graph = helper.make_graph([node], "g", graph_in,
                              [helper.make_empty_tensor_value_info(o) for o in outs], init)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    try:
        done = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception:
        return None
    got = []
    for v in done.graph.output:
        tt = v.type.tensor_type
        if not v.type.HasField("tensor_type") or not tt.HasField("shape"):
            return []
        d = [e.dim_value if e.HasField("dim_value") else -1 for e in tt.shape.dim]
        if -1 in d or tt.elem_type not in NAMES:
            return []
        got.append((tt.elem_type, d))
    return got


def text(t, shape, content=None):
    s = "%s:%s" % (NAMES[t], ",".join(map(str, shape)))
    return s if content is None else s + "=" + ",".join(str(int(c)) for c in content)


def attr_text(k, v):
    if isinstance(v, str):
        return "%s=s:%s" % (k, v)
    if isinstance(v, float):
        return "%s=f:%g" % (k, v)
    if isinstance(v, (list, tuple)):
        return "%s=is:%s" % (k, ",".join(map(str, v)))
    return "%s=i:%d" % (k, v)


lines = []


def case(op, inputs, n_out=1, keep_error=True, **attrs):
    got = infer(op, inputs, attrs, n_out)
    if got == [] or (got is None and not keep_error):
        return
    parts = [op, str(n_out), "in"] + ["-" if e is None else text(*e) for e in inputs]
    if attrs:
        parts += ["attr"] + [attr_text(k, v) for k, v in sorted(attrs.items())]
    parts += ["error"] if got is None else ["out"] + [text(*o) for o in got]
    lines.append(" ".join(parts))


def broadcastable(n):
    rank = R.randint(0, 4)
    full = dims(rank)
    out = []
    for _ in range(n):
        r = R.randint(0, rank)
        s = [d if R.random() < 0.7 else 1 for d in full[rank - r:]]
        if s and R.random() < 0.06:
            s[R.randrange(len(s))] += 1
        out.append(s)
    return out


def conv_attrs(sp, pool):
    a = {}
    if R.random() < 0.7:
        a["strides"] = dims(sp, 1, 3)
    if not pool and R.random() < 0.4:
        a["dilations"] = dims(sp, 1, 2)
    mode = R.random()
    if mode < 0.5:
        a["pads"] = [R.randint(0, 1) for _ in range(2 * sp)]
    elif mode < 0.75:
        a["auto_pad"] = R.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return a


def convs():
    sp = R.randint(1, 3)
    g = R.choice([1, 1, 2, 3])
    c, oc = g * R.randint(1, 3), g * R.randint(1, 3)
    k = dims(sp, 1, 3)
    a = conv_attrs(sp, False)
    if g > 1:
        a["group"] = g
    if R.random() < 0.5:
        a["kernel_shape"] = k
    ins = [x([R.randint(1, 3), c] + dims(sp, 6, 12)), x([oc, c // g] + k)]
    if R.random() < 0.5:
        ins.append(x([oc]))
    case("Conv", ins, **a)


def ceil_is_plain(n, k, s, pads, i, sp):
    left = n + pads[i] + pads[sp + i] - k
    out = -(-left // s) + 1
    return (out - 1) * s < n + pads[i]  # else ONNX 1.12 counts a window that holds padding only


def pools():
    sp = R.randint(1, 3)
    k = dims(sp, 2, 3)
    a = conv_attrs(sp, True)
    shape = [R.randint(1, 3), R.randint(1, 4)] + dims(sp, 5, 12)
    if R.random() < 0.4 and "auto_pad" not in a:
        a["ceil_mode"] = 1
        pads, st = a.get("pads", [0] * 2 * sp), a.get("strides", [1] * sp)
        if not all(ceil_is_plain(shape[2 + i], k[i], st[i], pads, i, sp) for i in range(sp)):
            return
    case("MaxPool", [x(shape)], n_out=R.randint(1, 2), kernel_shape=k, **a)
    if R.random() < 0.5:
        a["count_include_pad"] = 1
    case("AveragePool", [x(shape)], kernel_shape=k, **a)
    case(R.choice(["GlobalAveragePool", "GlobalMaxPool"]), [x(shape)])


def gemms():
    m, k, n = dims(3)
    ta, tb = R.randint(0, 1), R.randint(0, 1)
    ins = [x([k, m] if ta else [m, k]), x([n, k] if tb else [k, n])]
    if R.random() < 0.6:
        ins.append(x(R.choice([[n], [1, n], [m, 1], [m, n], [1]])))
    case("Gemm", ins, transA=ta, transB=tb)
    lead = broadcastable(2)
    kb = k + (R.random() < 0.1)
    case("MatMul", [x(lead[0] + [m, k]), x(lead[1] + [kb, n])])
    case("MatMul", [x([k]), x([k, n])])
    case("MatMul", [x(lead[0] + [m, k]), x([k])])


def elementwise():
    for op in ("Add", "Sub", "Mul", "Div", "Pow"):
        a, b = broadcastable(2)
        case(op, [x(a), x(b)])
    for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        a, b = broadcastable(2)
        case(op, [x(a), x(b)])
    for op in ("And", "Or", "Xor"):
        a, b = broadcastable(2)
        case(op, [x(a, T.BOOL), x(b, T.BOOL)])
    for op in ("Min", "Max", "Sum", "Mean"):
        case(op, [x(s) for s in broadcastable(R.randint(1, 4))])
    a, b, c = broadcastable(3)
    case("Where", [x(a, T.BOOL), x(b), x(c)])
    op = R.choice(["Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign",
                   "Reciprocal", "Sin", "Cos", "Softplus", "Elu", "LeakyRelu", "HardSigmoid", "HardSwish", "Identity"])
    case(op, [x(dims(R.randint(0, 5)))])
    case("Not", [x(dims(2), T.BOOL)])
    s = dims(R.randint(1, 4))
    case("Softmax", [x(s)], axis=R.randint(-len(s), len(s)))
    case("LogSoftmax", [x(s)], axis=R.randint(-len(s), len(s) - 1))
    case("Cast", [x(s)], to=int(R.choice([T.FLOAT, T.INT64, T.BOOL, T.DOUBLE])))
    case("Clip", [x(s), x([]), x([])])


def norms():
    s = dims(R.randint(2, 5))
    case("BatchNormalization", [x(s)] + [x([s[1]])] * 4)
    ax = R.randint(0, len(s) - 1)
    case("LayerNormalization", [x(s), x(s[ax:]), x(s[ax:])], n_out=R.randint(1, 3), axis=ax)
    s = dims(R.randint(3, 5))
    case("InstanceNormalization", [x(s)] + [x([s[1]])] * 2)


def reductions():
    s = dims(R.randint(1, 5))
    n = R.randint(0, len(s))
    axes = R.sample(range(len(s)), n)
    axes = [a - len(s) if R.random() < 0.5 else a for a in axes]
    keep = R.randint(0, 1)
    for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL2"):
        if axes:
            case(op, [x(s)], axes=axes, keepdims=keep)
        else:
            case(op, [x(s)], keepdims=keep)
    case("ReduceSum", [x(s), ints(axes)], keepdims=keep, noop_with_empty_axes=R.randint(0, 1))
    case("ArgMax", [x(s)], axis=R.randint(-len(s), len(s)), keepdims=keep)


def moving():
    s = dims(R.randint(1, 5))
    n = len(s)
    case("Flatten", [x(s)], axis=R.randint(-n, n + 1))
    p = list(range(n))
    R.shuffle(p)
    case("Transpose", [x(s)], perm=p)
    case("Transpose", [x(s)])
    ax = R.randint(-n, n - 1)
    other = list(s)
    other[ax] = R.randint(1, 9)
    if R.random() < 0.1:
        other[R.randrange(n)] += 1
    case("Concat", [x(s), x(other), x(s)], axis=ax)
    total = int(np.prod(s))
    target = [R.choice([d for d in range(1, total + 1) if total % d == 0]), -1]
    if R.random() < 0.3:
        target = [0] + target if total % max(1, s[0]) == 0 else target
    if R.random() < 0.1:
        target[0] += 1
    case("Reshape", [x(s), ints(target)])
    axes = R.sample(range(n + 2), 2)
    case("Unsqueeze", [x(s), ints(axes)])
    q = list(s)
    for i in range(n):
        if R.random() < 0.5:
            q[i] = 1
    ones = [i for i in range(n) if q[i] == 1]
    case("Squeeze", [x(q), ints([i - n if R.random() < 0.5 else i for i in ones])] if ones else [x(q)])
    parts = R.randint(1, 3)
    cuts = [R.randint(1, 5) for _ in range(parts)]
    t = list(s)
    t[ax] = sum(cuts) + (R.random() < 0.1)
    case("Split", [x(t), ints(cuts)], n_out=parts, axis=ax)
    t[ax] = parts * R.randint(1, 4)
    case("Split", [x(t)], n_out=parts, axis=ax)
    k = R.randint(1, n)
    axes = R.sample(range(n), k)
    big = 2**63 - 1
    starts = [R.choice([0, 1, -1, -3, 5, big]) for _ in range(k)]
    ends = [R.choice([0, 2, -1, 7, big, -big]) for _ in range(k)]
    steps = [R.choice([1, 1, 2, 3, -1, -2]) for _ in range(k)]
    case("Slice", [x(s), ints(starts), ints(ends), ints(axes), ints(steps)])
    case("Slice", [x(s), ints(starts), ints(ends), ints(axes)])
    case("Gather", [x(s), x(dims(R.randint(0, 2)), T.INT64)], axis=ax)
    rank = R.randint(1, 5)
    want = dims(rank)
    for i in range(1, min(rank, n) + 1):
        want[-i] = R.choice([s[-i], 1, s[-i]])
    if R.random() < 0.1:
        want[-1] = s[-1] + 1
    case("Expand", [x(s), ints(want)])
    case("Tile", [x(s), ints(dims(n, 1, 3))])
    case("Pad", [x(s), ints([R.randint(0, 3) for _ in range(2 * n)])])
    case("Shape", [x(s)], start=R.randint(-n - 1, n), end=R.randint(-n - 1, n + 1))
    case("Size", [x(s)])
    case("ConstantOfShape", [ints(s)])
    case("Dropout", [x(s)], n_out=R.randint(1, 2))
    case("CumSum", [x(s), scalar(ax)])
    case("GatherElements", [x(s), x([max(1, d - R.randint(0, 2)) for d in s], T.INT64)], axis=ax)
    a, b, c = R.randint(-5, 5), R.randint(-20, 20), R.choice([-3, -2, -1, 1, 2, 3])
    case("Range", [scalar(a), scalar(b), scalar(c)])


def scattering():
    b = R.randint(1, 3)
    case("DepthToSpace", [x([R.randint(1, 2), b * b * R.randint(1, 3)] + dims(2))], blocksize=b)
    case("SpaceToDepth", [x([R.randint(1, 2), R.randint(1, 3), b * R.randint(1, 3), b * R.randint(1, 3)])], blocksize=b)
    s = dims(R.randint(2, 4))
    n = len(s)
    case("EyeLike", [x(s[:2])], k=R.randint(-2, 2), dtype=int(T.INT64))
    case("Trilu", [x(s)], upper=R.randint(0, 1))
    case("OneHot", [x(s[:3], T.INT64), scalar(R.randint(1, 9)), x([2])], axis=R.randint(-3, 2))
    m = R.randint(1, n)
    lead = dims(R.randint(0, 2))
    case("GatherND", [x(s), x(lead + [m], T.INT64)])
    case("GatherND", [x(s), x(s[:1] + lead + [R.randint(1, n - 1)], T.INT64)], batch_dims=1)
    case("ScatterND", [x(s), x(lead + [m], T.INT64), x(lead + s[m:])])
    i = [max(1, d - R.randint(0, 2)) for d in s]
    case("ScatterElements", [x(s), x(i, T.INT64), x(i)], axis=R.randint(-n, n - 1))
    case("PRelu", [x(s), x([s[-1]])])
    case("IsNaN", [x(s)])
    case("IsInf", [x(s)])
    case("CastLike", [x(s), x([1], T.INT64)])
    for op in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"):
        case(op, [x(s)], axes=[R.randint(-n, n - 1)], keepdims=R.randint(0, 1))
    case("ArgMin", [x(s)], axis=R.randint(-n, n - 1), keepdims=R.randint(0, 1))


for _ in range(26):
    convs()
    convs()
for _ in range(18):
    pools()
    gemms()
    reductions()
    moving()
for _ in range(14):
    elementwise()
    norms()
for _ in range(8):
    scattering()
lines = sorted(set(lines))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes.txt"), "w") as f:
    f.write("# made by make_shapes.py with onnx %s\n" % onnx.__version__)
    f.write("\n".join(lines) + "\n")
print(len(lines), "cases", sum(l.endswith("error") for l in lines), "errors")
