#!/usr/bin/python3
"""Elementwise ops, casts, reductions and products in every integer type, and casts into the small floats: what exact
arithmetic gives. Integers are Python's, wrapped to the width; floats are fractions, rounded to nearest even here.
Writes op_dtypes.txt: op | attributes | inputs | output, in the notation of tests/unit/one_op.h."""
import random
from fractions import Fraction

random.seed(7)
INT = {"i8": (8, True), "i16": (16, True), "i32": (32, True), "i64": (64, True),
       "u8": (8, False), "u16": (16, False), "u32": (32, False), "u64": (64, False)}
ONNX = {"f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11,
        "u32": 12, "u64": 13, "bf16": 16}
FLOAT = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
INF, NAN = float("inf"), float("nan")
lines = []


def limits(t):
    bits, signed = INT[t]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def wrap(v, t):
    bits, signed = INT[t]
    v &= (1 << bits) - 1
    return v - (1 << bits) if signed and v >> bits - 1 else v


def some(t, n, small=False):
    lo, hi = limits(t)
    edge = [lo, lo + 1, hi, hi - 1, 0, 1, 2, hi // 2, hi // 2 + 1, lo // 2]
    pool = [v for v in range(-4, 5) if lo <= v <= hi]
    return [random.choice(pool if small else edge + pool + [random.randint(lo, hi)]) for _ in range(n)]


def tensor(t, dims, v):
    return f"{t}:{','.join(map(str, dims))}={','.join(text(x) for x in v)}"


def text(x):
    if isinstance(x, float):
        return "nan" if x != x else "inf" if x == INF else "-inf" if x == -INF else x.hex()
    return str(int(x))


def add(op, attrs, ins, out):
    lines.append("|".join([op, attrs, ";".join(ins), out]))


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def rounded(x, t):
    """Fraction or special float to the nearest of type t, as a double (which holds all of them)."""
    if isinstance(x, float):
        if x != x or x in (INF, -INF) or x == 0:
            return x
        x = Fraction(x)
    if x == 0:
        return 0.0
    bits, lo, hi = FLOAT[t]
    a = abs(x)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:
        e -= 1
    unit = Fraction(2) ** (max(e, lo) - bits + 1)
    q = a / unit
    n = q.numerator // q.denominator
    rest = q - n
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2):
        n += 1
    if n * unit >= Fraction(2) ** (hi + 1):
        return INF if x > 0 else -INF
    return float(n * unit) * (1 if x > 0 else -1)


N = 24
for t in INT:
    lo, hi = limits(t)
    for op, f in [("Add", lambda a, b: a + b), ("Sub", lambda a, b: a - b), ("Mul", lambda a, b: a * b),
                  ("Min", min), ("Max", max), ("Div", trunc_div), ("Mod", lambda a, b: a % b)]:
        a, b = some(t, N), some(t, N)
        if op in ("Div", "Mod"):
            b = [x or 1 for x in b]
        add(op, "", [tensor(t, [N], a), tensor(t, [N], b)], tensor(t, [N], [wrap(f(x, y), t) for x, y in zip(a, b)]))
    a, b = some(t, N), [x or 3 for x in some(t, N)]
    add("Mod", "fmod=i:1", [tensor(t, [N], a), tensor(t, [N], b)],
        tensor(t, [N], [wrap(x - trunc_div(x, y) * y, t) for x, y in zip(a, b)]))
    for op, f in [("Equal", lambda a, b: a == b), ("Less", lambda a, b: a < b), ("LessOrEqual", lambda a, b: a <= b),
                  ("Greater", lambda a, b: a > b), ("GreaterOrEqual", lambda a, b: a >= b)]:
        a, b = some(t, N), some(t, N)
        b[:6] = a[:6]
        add(op, "", [tensor(t, [N], a), tensor(t, [N], b)], tensor("bool", [N], [f(x, y) for x, y in zip(a, b)]))
    a = some(t, N)
    add("Abs", "", [tensor(t, [N], a)], tensor(t, [N], [wrap(abs(x), t) for x in a]))
    add("Sign", "", [tensor(t, [N], a)], tensor(t, [N], [(x > 0) - (x < 0) for x in a]))
    if lo < 0:
        add("Neg", "", [tensor(t, [N], a)], tensor(t, [N], [wrap(-x, t) for x in a]))
        add("Relu", "", [tensor(t, [N], a)], tensor(t, [N], [max(x, 0) for x in a]))
    else:
        for way in ("LEFT", "RIGHT"):
            b = [random.choice([0, 1, 3, 7, 8, 15, 31, 63]) for _ in range(N)]
            add("BitShift", f"direction=s:{way}", [tensor(t, [N], a), tensor(t, [N], b)],
                tensor(t, [N], [wrap(x << y if way == "LEFT" else x >> y, t) for x, y in zip(a, b)]))
    low, high = sorted(some(t, 2))
    add("Clip", "", [tensor(t, [N], a), tensor(t, [], [low]), tensor(t, [], [high])],
        tensor(t, [N], [min(max(x, low), high) for x in a]))
    m = [some(t, 6) for _ in range(4)]
    flat = [x for row in m for x in row]
    prod = lambda row: eval("*".join(f"({x})" for x in row))
    for op, f in [("ReduceSum", sum), ("ReduceMax", max), ("ReduceMin", min), ("ReduceProd", prod),
                  ("ReduceSumSquare", lambda r: sum(x * x for x in r)), ("ReduceL1", lambda r: sum(map(abs, r)))]:
        ins = [tensor(t, [4, 6], flat)] + (["i64:1=1"] if op == "ReduceSum" else [])
        add(op, "keepdims=i:0" + ("" if op == "ReduceSum" else " axes=ints:1"), ins,
            tensor(t, [4], [wrap(f(row), t) for row in m]))
    for op, f in [("ArgMax", max), ("ArgMin", min)]:
        add(op, "keepdims=i:0 axis=i:1", [tensor(t, [4, 6], flat)], tensor("i64", [4], [row.index(f(row)) for row in m]))
    order = sorted(range(24), key=lambda i: (-flat[i], i))[:5]
    add("TopK", "", [tensor(t, [24], flat), "i64:1=5"], tensor(t, [5], [flat[i] for i in order]))
    add("Unique", "", [tensor(t, [24], flat)], tensor(t, [len(set(flat))], sorted(set(flat))))
    if t in ("i32", "i64", "u32", "u64"):
        a, b = [some(t, 3) for _ in range(2)], [some(t, 2) for _ in range(3)]
        c = [wrap(sum(a[i][k] * b[k][j] for k in range(3)), t) for i in range(2) for j in range(2)]
        mats = [tensor(t, [2, 3], sum(a, [])), tensor(t, [3, 2], sum(b, []))]
        add("MatMul", "", mats, tensor(t, [2, 2], c))
        add("Gemm", "", mats, tensor(t, [2, 2], c))
        run, sums = 0, []
        for x in flat:
            run = wrap(run + x, t)
            sums.append(run)
        add("CumSum", "", [tensor(t, [24], flat), "i64:=0"], tensor(t, [24], sums))
        slope = some(t, 1)
        add("PRelu", "", [tensor(t, [N], flat), tensor(t, [1], slope)],
            tensor(t, [N], [wrap(x * slope[0], t) if x < 0 else x for x in flat]))
    if t in ("i32", "i64"):
        for u in INT:
            a, b = some(t, 8), [abs(x) for x in some(u, 8, small=True)]
            add("Pow", "", [tensor(t, [8], a), tensor(u, [8], b)], tensor(t, [8], [wrap(x ** y, t) for x, y in zip(a, b)]))

# casts: integers wrap; floats that fit are cut off, others go to the nearest end, NaN is 0
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.75, NAN, INF, -INF, 65504.0, 65519.0, 65520.0, 2.0 ** -24, 2.0 ** -25,
           3 * 2.0 ** -26, 2.0 ** -14 - 2.0 ** -26, 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, 1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8,
           3.3961775292304957e38, 3.3895313892515355e38, 1e-40, 9.1835e-41, 127.9, -128.9, 255.5, 1e10, -1e10]
WIDE = [1 + 2.0 ** -8 + 2.0 ** -40, 1 + 2.0 ** -8 - 2.0 ** -40, 1 + 2.0 ** -11 + 2.0 ** -50, 1e300, -1e300, 5e-324,
        2.0 ** 63, -2.0 ** 63, 2.0 ** 64, 2.0 ** 63 - 1024]
for src in list(INT) + list(FLOAT) + ["bool"]:
    if src in INT:
        v = some(src, 30) + [limits(src)[1]]
    elif src == "bool":
        v = [0, 1]
    else:
        v = [rounded(x, src) for x in SPECIAL + WIDE + [random.uniform(-300, 300) for _ in range(10)]]
    for dst in list(INT) + list(FLOAT) + ["bool"]:
        if dst == "bool":
            out = [x != 0 for x in v]
        elif dst in INT:
            lo, hi = limits(dst)
            if src in FLOAT:
                out = [0 if x != x else hi if x >= hi else lo if x <= lo else int(x) for x in v]
            else:
                out = [wrap(x, dst) for x in v]
        else:
            out = [rounded(x if isinstance(x, float) else Fraction(int(x)), dst) for x in v]
        add("Cast", f"to=i:{ONNX[dst]}", [tensor(src, [len(v)], v)], tensor(dst, [len(v)], out))

with open(__file__.replace("make_op_dtypes.py", "op_dtypes.txt"), "w") as f:
    f.write("# op | attributes | inputs | output, by make_op_dtypes.py\n")
    f.write("\n".join(lines) + "\n")
print(len(lines))
