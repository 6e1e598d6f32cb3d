#!/usr/bin/python3
"""PyTorch's optimizers, gradient clipping and schedules, step by step: writes optim.txt beside this script, or to the
given path. Lines: `case NAME KIND lr momentum nesterov decay beta1 beta2 eps clip elements steps`, then `p` (the
parameters at first) and for every step `g` (the gradients) and `p`, in decimal that reads back to the same float.
`lr CURVE lr warmup total every gamma floor`, then the rate of every step."""
import pathlib
import sys

import torch

torch.manual_seed(11)
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "optim.txt")
N, STEPS = 19, 6
lines = []


def numbers(tag, t):
    lines.append(tag + " " + " ".join("%.9g" % v for v in t.flatten().tolist()))


def case(name, kind, lr, momentum=0.0, nesterov=False, decay=0.0, betas=(0.9, 0.999), eps=1e-8, clip=0.0, size=1.0):
    params = [torch.nn.Parameter(torch.randn(n) * size) for n in (N, 1, 5)]
    if kind == "sgd":
        opt = torch.optim.SGD(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    else:
        opt = torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=decay)
    lines.append(f"case {name} {kind} {lr} {momentum} {int(nesterov)} {decay} {betas[0]} {betas[1]} {eps} {clip} "
                 f"{' '.join(str(p.numel()) for p in params)} {STEPS}")
    numbers("p", torch.cat([p.detach() for p in params]))
    for step in range(STEPS):
        for p in params:
            p.grad = torch.randn(p.shape) * (0.1 if step % 2 else 3.0)
        numbers("g", torch.cat([p.grad for p in params]))
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        opt.step()
        numbers("p", torch.cat([p.detach() for p in params]))


def rates(curve, lr, warmup, total, every=1, gamma=0.1, floor=0.0):
    p = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([p], lr=lr)
    if curve == "step":
        after = torch.optim.lr_scheduler.StepLR(opt, every, gamma)
    elif curve == "cosine":
        after = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total - warmup, floor)
    else:
        after = torch.optim.lr_scheduler.ConstantLR(opt, 1.0, 1)
    chain = after
    if warmup:
        up = torch.optim.lr_scheduler.LinearLR(opt, 1.0 / warmup, 1.0, max(warmup - 1, 1))
        chain = torch.optim.lr_scheduler.SequentialLR(opt, [up, after], [warmup])
    out = []
    for _ in range(total):
        out.append(opt.param_groups[0]["lr"])
        opt.step()
        chain.step()
    lines.append(f"lr {curve} {lr} {warmup} {total} {every} {gamma} {floor}")
    lines.append("r " + " ".join("%.17g" % v for v in out))


case("sgd", "sgd", 0.05)
case("momentum", "sgd", 0.05, momentum=0.9)
case("nesterov", "sgd", 0.1, momentum=0.9, nesterov=True)
case("decay", "sgd", 0.01, momentum=0.8, decay=5e-4)
case("nesterov-decay", "sgd", 0.01, momentum=0.95, nesterov=True, decay=1e-2)
case("plain-decay", "sgd", 0.02, decay=0.1)
case("clip", "sgd", 0.05, momentum=0.9, clip=1.0)
case("clip-loose", "sgd", 0.05, momentum=0.9, clip=50.0)
case("small-rate", "sgd", 1e-6, momentum=0.9, size=1e-3)
case("adamw", "adamw", 1e-3, decay=0.01)
case("adamw-plain", "adamw", 0.01)
case("adamw-betas", "adamw", 3e-4, decay=0.1, betas=(0.8, 0.95), eps=1e-6)
case("adamw-clip", "adamw", 1e-3, decay=0.05, clip=0.5)
rates("constant", 0.05, 0, 6)
rates("step", 0.1, 0, 12, every=4, gamma=0.5)
rates("cosine", 0.1, 0, 10)
rates("cosine", 0.1, 0, 9, floor=0.01)
rates("constant", 0.2, 4, 8)
rates("cosine", 0.05, 3, 11)
rates("step", 0.05, 2, 11, every=3, gamma=0.1)
OUT.write_text("\n".join(lines) + "\n")
