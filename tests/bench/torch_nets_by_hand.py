"""Nets that are written by hand, as users of torch do: a ResNet, a VGG that is read between its layers, a U-Net."""

from __future__ import annotations

from typing import Any

import torch

nn = torch.nn


class Bottleneck(torch.nn.Module):  # type: ignore[misc]
    """As torchvision's: one activation, called three times, and a sum before the last."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.bn3(out)
        out += self.downsample(x)
        result: torch.Tensor = self.relu(out)
        return result


def resnet() -> torch.nn.Module:
    """A stem, two bottlenecks and a classifier."""
    stem = (nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return normed(nn.Sequential(*stem, Bottleneck(16, 32, 1), Bottleneck(128, 64, 2), *head))


class Vgg(torch.nn.Module):  # type: ignore[misc]
    """Features that are read between the layers, as a perceptual loss does, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for inside, width in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(64, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        taps = []
        for layer in self.features:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                taps.append(x.clone())
        return (*taps, self.classifier(self.features[-1](x).mean((2, 3))))


class UNet(torch.nn.Module):  # type: ignore[misc]
    """Two scales, joined by a transposed convolution and what was there before; the stem takes windows of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 16, 16)

        def part(inside: int, width: int) -> Any:
            return nn.Sequential(nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU())

        self.down = nn.ModuleList([part(32, 32), part(32, 64)])
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.last, self.out, self.pool = part(64, 32), nn.Conv2d(32, 4, 1), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](self.stem(x))
        second = self.down[1](self.pool(first))
        result: torch.Tensor = self.out(self.last(torch.cat([self.up(second), first], 1)))
        return result


def normed(model: torch.nn.Module) -> torch.nn.Module:
    """With norms that are not the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return model.eval()
