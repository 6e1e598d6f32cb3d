#!/usr/bin/python3
"""Golden models of many architectures: what torchvision exports as classifier, segmenter, detector or backbone.

Usage: make_zoo.py FOLDER [--small] [NAME...]     (a build folder: the files are big; --small: the few of the short run)

For every model NAME a folder in the layout of ONNX backend test data, so that `yoke local check` takes it too:
NAME/model.onnx and NAME/test_data_set_0/{input,output}_I.pb. The outputs are PyTorch's in f64, rounded to the type that
the model has. Weights are seeded, batch-norm statistics set by one train-mode forward, layer scales and the like of
order one, and a model whose outputs for two inputs hardly differ is refused, as in make_models.py. Images are as small
as the net takes, so that all of them run in minutes. Deterministic on one machine; work is skipped when the stamp matches.
"""
import copy
import hashlib
import os
import shutil
import sys

import numpy as np
import onnx
import torch
import torchvision
from onnx import numpy_helper

from make_models import MIN_DIFFERENCE, images, relative

OPSET = 13
M = torchvision.models


def settle(model, x):
    """Batch-norm statistics of x, as make_models has it; layers that start near nothing (layer scale) start at one.
    Deep nets with fresh batch-norms are chaotic: f32 is then 5e-5 from f64. As in trained ones, most units are on (bias)
    and a block adds little to its shortcut."""
    g = torch.Generator().manual_seed(7)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    before = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 1.0
        torch.nn.init.constant_(m.bias, 0.5)
    for m in model.modules():
        if isinstance(m, M.resnet.Bottleneck):
            torch.nn.init.constant_(m.bn3.weight, 0.2)
    for name, p in model.named_parameters():
        if name.endswith("layer_scale"):
            p.data = 0.5 + torch.rand(p.shape, generator=g)
        elif name.endswith("conv_last") or (p.dim() > 1 and not p.any()):
            p.data = torch.randn(p.shape, generator=g) * 0.05  # a head of zeros would say the same to every input
    if norms:
        model.train()
        with torch.no_grad():
            model(x)
    for m, momentum in zip(norms, before):
        m.momentum = momentum
    return model.eval()


class Named(torch.nn.Module):
    """A segmenter or a backbone answers with a dict: its values, in order."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return tuple(self.inner(x).values())


def classifier(build, size=64, opset=OPSET, settled=128, **more):
    """settled: with fewer pixels too few values make a statistic of the last layers, and f32 is far from f64."""
    return lambda: (settle(build(weights=None, **more), images(8, settled, 5)), images(2, size, 6), opset)


def segmenter(build, size=64):
    return lambda: (Named(settle(build(weights=None, weights_backbone=None, num_classes=5), images(8, 128, 5))),
                    images(2, size, 6), OPSET)


def backbone():
    net = M.detection.backbone_utils.resnet_fpn_backbone(
        "resnet50", weights=None, norm_layer=torch.nn.BatchNorm2d, trainable_layers=5)
    return Named(settle(net, images(8, 128, 5))), images(2, 64, 6), OPSET


def vit():
    net = M.vit_b_16(weights=None, image_size=64)
    torch.nn.init.normal_(net.heads.head.weight, std=0.05)
    return net.eval(), images(2, 64, 6), OPSET


def detector(build, scores, factor, **more):
    """A whole detector, with its NMS: one image, three outputs whose first size depends on it. scores: names of the
    layers that say how sure it is, whose weights start near nothing."""

    def made():
        net = build(weights=None, weights_backbone=None, num_classes=5, **more).eval()
        g = torch.Generator().manual_seed(9)
        norms = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for m in norms:
            m.train().momentum = 1.0
            torch.nn.init.constant_(m.bias, 0.5)
        for name, p in net.named_parameters():
            if any(s in name for s in scores):
                p.data = torch.randn(p.shape, generator=g) * factor / (p[0].numel() ** 0.5)
        with torch.no_grad():
            net(images(8, 96, 5))
        return net.eval(), images(1, 96, 6), 11

    return made


def catalogue():
    """NAME -> (a function that builds (model, inputs, opset), belongs to the short run)"""
    return {
        "alexnet": (classifier(M.alexnet, 224), False),
        "vgg11": (classifier(M.vgg11, 224), False),
        "resnet18": (classifier(M.resnet18), False),
        "resnext50_32x4d": (classifier(M.resnext50_32x4d), False),
        "wide_resnet50_2": (classifier(M.wide_resnet50_2), False),
        "densenet121": (classifier(M.densenet121), False),
        "squeezenet1_1": (classifier(M.squeezenet1_1), True),
        "inception_v3": (classifier(M.inception_v3, 96, init_weights=False, aux_logits=False), False),
        "googlenet": (classifier(M.googlenet, init_weights=False, aux_logits=False), False),
        "shufflenet_v2_x0_5": (classifier(M.shufflenet_v2_x0_5), True),
        "shufflenet_v2_x1_0": (classifier(M.shufflenet_v2_x1_0), False),
        "mnasnet0_5": (classifier(M.mnasnet0_5), True),
        "mnasnet1_0": (classifier(M.mnasnet1_0), False),
        "mobilenet_v2": (classifier(M.mobilenet_v2), False),
        "mobilenet_v3_small": (classifier(M.mobilenet_v3_small), True),
        "mobilenet_v3_large": (classifier(M.mobilenet_v3_large), False),
        "efficientnet_b0": (classifier(M.efficientnet_b0), True),
        "efficientnet_v2_s": (classifier(M.efficientnet_v2_s), False),
        "regnet_x_400mf": (classifier(M.regnet_x_400mf), True),
        "regnet_y_400mf": (classifier(M.regnet_y_400mf), False),
        "convnext_tiny": (classifier(M.convnext_tiny), False),
        "vit_b_16": (vit, False),
        "swin_t": (classifier(M.swin_t), False),
        "maxvit_t": (classifier(M.maxvit_t, 224, settled=224), False),
        "deeplabv3_mobilenet_v3_large": (segmenter(M.segmentation.deeplabv3_mobilenet_v3_large), False),
        "deeplabv3_resnet50": (segmenter(M.segmentation.deeplabv3_resnet50), False),
        "fcn_resnet50": (segmenter(M.segmentation.fcn_resnet50), False),
        "lraspp_mobilenet_v3_large": (segmenter(M.segmentation.lraspp_mobilenet_v3_large), True),
        "resnet50_fpn_backbone": (backbone, False),
        "ssdlite320_mobilenet_v3_large": (detector(
            M.detection.ssdlite320_mobilenet_v3_large, ["classification_head.module_list"], 0.5, score_thresh=0.3,
            detections_per_img=20, topk_candidates=40), False),
        "fasterrcnn_mobilenet_v3_large_320_fpn": (detector(
            M.detection.fasterrcnn_mobilenet_v3_large_320_fpn, ["cls_score", "rpn.head.cls_logits"], 3.0, min_size=96,
            max_size=128, box_score_thresh=0.3, rpn_pre_nms_top_n_test=60, rpn_post_nms_top_n_test=40), False),
        "retinanet_resnet50_fpn": (detector(
            M.detection.retinanet_resnet50_fpn, ["cls_logits"], 3.0, min_size=96, max_size=128, score_thresh=0.2,
            topk_candidates=40), False),
    }


def flat(y):
    if isinstance(y, torch.Tensor):
        return [y.detach().numpy()]
    return [a for v in (y.values() if isinstance(y, dict) else y) for a in flat(v)]


def flat_names(y):
    return list(y[0]) if isinstance(y, list) else [f"y{i}" for i in range(len(y))] if isinstance(y, tuple) else ["y"]


def make(folder, name, model, x, opset):
    with torch.no_grad():
        y = model(x)
        names, y = flat_names(y), flat(y)
        truth = flat(copy.deepcopy(model).double()(x.double()))
    if len(x) == 1:  # a detector: what it finds must vary
        if not len(truth[0]):
            sys.exit(f"{name}: it finds nothing")
        difference = relative(truth[0][0], truth[0][-1])
    else:
        difference = max(relative(t[0], t[1]) for t in truth)
    if not all(np.isfinite(t).all() for t in truth):
        sys.exit(f"{name}: outputs are not finite")
    if difference < MIN_DIFFERENCE:
        sys.exit(f"{name}: outputs for two inputs differ by {difference:.2e} relative only: a wrong net would pass")
    distance = max(relative(a, b) for a, b in zip(y, truth))
    data = os.path.join(folder, name, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    path = os.path.join(folder, name, "model.onnx")
    torch.onnx.export(model, x, path + ".part", opset_version=opset, input_names=["x"], output_names=names,
                      dynamic_axes=None if len(x) == 1 else {n: {0: "N"} for n in ["x", *names]})
    for kind, arrays in (("input", [x.numpy()]), ("output", [t.astype(a.dtype) for a, t in zip(y, truth)])):
        for i, a in enumerate(arrays):
            with open(os.path.join(data, f"{kind}_{i}.pb"), "wb") as f:
                f.write(numpy_helper.from_array(np.ascontiguousarray(a)).SerializeToString())
    os.replace(path + ".part", path)
    print(f"{name}: {os.path.getsize(path)} bytes, two inputs differ by {difference:.2e}, "
          f"f32 against f64 {distance:.1e}", flush=True)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--small"]
    if not arguments:
        sys.exit(__doc__.split("\n\n")[1])
    folder, models = arguments[0], catalogue()
    os.makedirs(folder, exist_ok=True)
    stamp = hashlib.sha256()
    for script in (__file__, os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_models.py")):
        with open(script, "rb") as f:
            stamp.update(f.read())
    stamp = stamp.hexdigest() + f" torch {torch.__version__} torchvision {torchvision.__version__}"
    for name in arguments[1:] or models:
        if name not in models:
            sys.exit(f"unknown model {name} (known: {', '.join(models)})")
        build, small = models[name]
        if "--small" in sys.argv and not small and not arguments[1:]:
            continue
        marker = os.path.join(folder, name, "stamp")
        if os.path.exists(marker) and open(marker).read() == stamp:
            continue
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        torch.manual_seed(sum(name.encode()))
        make(folder, name, *build())
        with open(marker, "w") as f:
            f.write(stamp)


if __name__ == "__main__":
    main()
