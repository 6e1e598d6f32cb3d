#!/usr/bin/python3
"""Small networks in float64: their ONNX files, and loss, gradients and running statistics as PyTorch's autograd gives them.

Writes grad/<net>.onnx and grad/<net>.txt beside itself. The text: one fact a line, numbers with 17 digits.
  option NAME VALUE             of the loss
  input NAME TYPE SIZES VALUES  (f64 or i64), target likewise, divisor VALUE
  loss VALUE
  grad NAME COUNT SQUARES VALUES     the sum of all squares, then every k-th element, at most 48
  state NAME COUNT SQUARES VALUES    the next running statistic, after one microbatch
"""
import io
import math
import pathlib

import onnx
import onnx.numpy_helper
import torch
import torch.nn as nn
import torch.nn.functional as F

OUT = pathlib.Path(__file__).parent / "grad"
SHOWN = 48
torch.set_default_dtype(torch.float64)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.c2, self.b2 = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6, momentum=0.3)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        x = F.relu(self.b2(self.c2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Residual(nn.Module):
    """A residual block with a projection, then one without; average pooling in between."""

    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.Conv2d(3, 4, 1, stride=2, bias=False), nn.BatchNorm2d(4))
        self.c3, self.b3 = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.pool = nn.AvgPool2d(3, 2, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        y = self.b2(self.c2(F.silu(self.b1(self.c1(x)))))
        x = F.relu(y + self.down(x))
        x = self.pool(x)
        x = F.relu(x + self.b3(self.c3(x)))
        return self.fc(x.mean((2, 3)))


class Mobile(nn.Module):
    """Inverted residual with squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.e, self.eb = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.d, self.db = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.s1, self.s2 = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.p, self.pb = nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.prelu, self.fc = nn.PReLU(4), nn.Linear(4, 3)

    def forward(self, x):
        y = F.relu6(self.eb(self.e(x)) * 4)
        y = F.hardswish(self.db(self.d(y)) * 2)
        y = y * F.hardsigmoid(self.s2(F.leaky_relu(self.s1(F.adaptive_avg_pool2d(y, 1)), 0.2)))
        x = self.prelu(x + self.pb(self.p(y)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        n, t, w = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = q @ k.transpose(-2, -1) / math.sqrt(w // self.heads)
        if mask is not None:
            a = a.masked_fill(mask, float("-inf"))
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.a, self.n2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.f1, self.f2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask=None):
        x = x + self.a(self.n1(x), mask)
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 8) * 0.5), nn.Parameter(torch.randn(1, 5, 8) * 0.5)
        self.block, self.norm, self.head = Block(8, 2), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


class Language(nn.Module):
    """Token and position embeddings, causal attention, output weights shared with the token embedding."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.block, self.norm = Block(8, 2), nn.LayerNorm(8)
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).triu(1))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        x = self.norm(self.block(x, self.mask))
        return (x @ self.tok.weight.t()).transpose(1, 2)


class Sequence(nn.Module):
    """PyTorch's own encoder layer over a length that is named, up to a limit."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, 8), nn.Parameter(torch.randn(1, 9, 8) * 0.5)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 5)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.encoder(self.tok(ids) + self.pos[:, :t], mask=torch.full((t, t), float("-inf")).triu(1))
        return self.out(x).transpose(1, 2)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.g1 = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.c2, self.i2 = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.InstanceNorm2d(6, affine=True)
        self.up, self.c3 = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = F.elu(self.g1(self.c1(F.pad(x, (1, 1, 1, 1), mode="reflect"))))
        y = F.softplus(self.i2(self.c2(x)))
        z = F.interpolate(y, size=(8, 8), mode="bilinear", align_corners=False)
        y = torch.cat([x, self.up(y) + z[:, :4]], 1)
        return torch.sigmoid(self.c3(y))


class Recycled(nn.Module):
    """One linear module used twice, and batch normalisation of vectors used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.n = nn.Linear(6, 6), nn.Linear(6, 3), nn.BatchNorm1d(6)

    def forward(self, x):
        for _ in range(2):
            x = torch.tanh(self.n(self.a(x)))
        return self.b(x)


def ids(*shape, below):
    return torch.randint(0, below, shape)


def numbers(t):
    return " ".join("%.17g" % v for v in t.detach().double().reshape(-1).tolist())


def shown(t):
    t = t.detach().reshape(-1)
    step = max(1, (t.numel() + SHOWN - 1) // SHOWN)
    return "%d %.17g %s" % (t.numel(), float((t.double() ** 2).sum()), numbers(t[::step]))


def tensor(t):
    kind = "f64" if t.is_floating_point() else "i64"
    return "%s %s %s" % (kind, ",".join(str(d) for d in t.shape), numbers(t))


def loss_of(kind, y, target, smoothing, ignore):
    if kind == "cross-entropy":
        return F.cross_entropy(y, target, reduction="sum", label_smoothing=smoothing, ignore_index=ignore)
    if kind == "nll":
        return F.nll_loss(F.log_softmax(y, 1), target, reduction="sum", ignore_index=ignore)
    one = {"mse": F.mse_loss, "l1": F.l1_loss, "bce": F.binary_cross_entropy_with_logits}[kind]
    return one(y, target, reduction="none").flatten(1).mean(1).sum()


def make(name, net, x, target, kind="cross-entropy", smoothing=0.0, ignore=-100, frozen=False, folded=False,
         named=("N",), opset=17):
    torch.manual_seed(7)
    for p in net.parameters():  # away from zeros and ones
        with torch.no_grad():
            p.add_(0.1 * torch.randn_like(p))
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            m.running_mean.normal_(0, 0.3)
            m.running_var.uniform_(0.5, 1.5)
    net.train(not folded)
    if kind == "nll":
        net = nn.Sequential(net, nn.LogSoftmax(1)).train()
    file = io.BytesIO()
    mode = torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.TRAINING
    axes = {"x": dict(enumerate(named))}
    torch.onnx.export(net, x, file, input_names=["x"], output_names=["y"], opset_version=opset, dynamic_axes=axes,
                      training=mode, do_constant_folding=folded)
    model = onnx.load_from_string(file.getvalue())
    if not folded:  # exporting runs the net, which moves its statistics
        given = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
        net.load_state_dict({k: given.get(k, v) for k, v in net.state_dict().items()})
    for n in model.graph.node:
        n.ClearField("doc_string")
    onnx.save(model, OUT / (name + ".onnx"))
    weights = {t.name for t in model.graph.initializer}
    if frozen:
        net.eval()
    y = net(x)
    if kind == "nll":
        loss = F.nll_loss(y, target, reduction="sum", ignore_index=ignore)
    else:
        loss = loss_of(kind, y, target, smoothing, ignore)
    divisor = 1.25 * x.shape[0]
    (loss / divisor).backward()
    lines = ["option loss " + kind, "option smoothing %g" % smoothing, "option ignore %d" % ignore,
             "option frozen %d" % frozen, "input x " + tensor(x), "target " + tensor(target), "divisor %.17g" % divisor,
             "loss %.17g" % float(loss / divisor)]
    for key, p in net.named_parameters():
        if key not in weights:
            assert folded, (name, key, sorted(weights))
            continue
        lines.append("grad %s %s" % (key, shown(p.grad)))
    for key, b in net.named_buffers():
        if not frozen and not folded and ("running_mean" in key or "running_var" in key):
            lines.append("state %s %s" % (key, shown(b)))
    (OUT / (name + ".txt")).write_text("\n".join(lines) + "\n")


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(1)
    image = lambda n, c, s: torch.randn(n, c, s, s)
    make("mlp", mlp(), image(4, 3, 2), ids(4, below=5))
    make("mlp_smooth", mlp(), image(5, 3, 2), torch.tensor([0, 4, 9, 2, 1]), smoothing=0.2, ignore=9)
    make("mlp_nll", mlp(), image(4, 3, 2), torch.tensor([0, -100, 3, 2]), kind="nll")
    make("mlp_mse", mlp(), image(4, 3, 2), torch.randn(4, 5), kind="mse")
    make("mlp_l1", mlp(), image(4, 3, 2), torch.randn(4, 5), kind="l1")
    make("mlp_bce", mlp(), image(4, 3, 2), torch.rand(4, 5), kind="bce")
    make("cnn", Cnn(), image(3, 2, 8), ids(3, below=5))
    make("cnn_frozen", Cnn(), image(3, 2, 8), ids(3, below=5), frozen=True)
    make("cnn_folded", Cnn(), image(3, 2, 8), ids(3, below=5), folded=True)
    make("cnn_opset9", Cnn(), image(3, 2, 8), ids(3, below=5), opset=9)
    make("residual", Residual(), image(3, 3, 9), ids(3, below=3))
    make("mobile", Mobile(), image(3, 4, 5), ids(3, below=3))
    make("attention", nn.Sequential(Block(8, 2), nn.Flatten(1), nn.Linear(40, 3)), torch.randn(3, 5, 8), ids(3, below=3))
    make("attention_opset11", nn.Sequential(Block(8, 2), nn.Flatten(1), nn.Linear(40, 3)), torch.randn(3, 5, 8),
         ids(3, below=3), opset=11)
    make("vit", Vit(), image(3, 3, 8), ids(3, below=4))
    make("language", Language(), ids(3, 6, below=11), ids(3, 6, below=11))
    make("sequence", Sequence(), ids(2, 7, below=11), ids(2, 7, below=5), smoothing=0.1, named=("N", "T"))
    make("unet", Unet(), image(2, 2, 8), torch.rand(2, 3, 8, 8), kind="mse")
    make("recycled", Recycled(), torch.randn(5, 6), ids(5, below=3))


main()
