"""The networks of `yoke model new` in PyTorch: the same architectures, and their parameters out of an ONNX file."""
import warnings

import onnx
import torch
import torchvision
from onnx import numpy_helper
from torch import nn

warnings.simplefilter("ignore")


Block = torchvision.models.resnet.BasicBlock


class SmallResNet(nn.Module):
    """ResNet-14: a stem of 3x3 and two blocks each of 16, 32 and 64 channels."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16), Block(16, 16))
        for i, width in ((2, 32), (3, 64)):
            down = nn.Sequential(nn.Conv2d(width // 2, width, 1, 2, bias=False), nn.BatchNorm2d(width))
            setattr(self, f"layer{i}", nn.Sequential(Block(width // 2, width, 2, down), Block(width, width)))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def make(kind, classes, channels, height, width):
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                             nn.Linear(128, classes))
    if kind == "cnn":
        return nn.Sequential(nn.Conv2d(channels, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(32 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Linear(128, classes))
    if kind == "resnet-small":
        net = SmallResNet(channels, classes)
    elif kind == "vit-tiny":
        net = torchvision.models.VisionTransformer(image_size=height, patch_size=16 if height >= 96 else 4, num_layers=12,
                                                   num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=classes)
    else:
        net = getattr(torchvision.models, kind)(num_classes=classes)
    if channels != 3 and kind in ("resnet18", "resnet34"):
        net.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    if kind.startswith("resnet"):
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net


def load(net, path):
    """Parameters and statistics of the file into net; fails if a name or a shape differs either way."""
    ours = {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    for name, value in state.items():
        if name not in ours or tuple(ours[name].shape) != tuple(value.shape):
            raise AssertionError(f"{path}: '{name}' is {ours[name].shape if name in ours else 'missing'}, "
                                 f"PyTorch has {tuple(value.shape)}")
        value.copy_(torch.from_numpy(ours[name].copy()))
    trained = {n for n, v in ours.items() if v.dtype.name == "float32" and v.ndim}
    if trained != set(state):
        raise AssertionError(f"{path}: has {sorted(trained - set(state))} besides")
    return net
