"""Layers of the published networks that derivation is measured on, and networks of many of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution, a transposed one or a maximum of windows: its weight's shape as ONNX has it, its function behind it.

    ``reads``: number of the layer whose result it reads; None: the one before. ``adds``: of the layer whose result is added
    before the function; what a transposed convolution has beyond that result's size is cut off.
    """

    operator: str
    weight: tuple[int, int, int, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    function: str = ""
    reads: int | None = None
    adds: int | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """Channels and features."""
        first, second = self.weight[:2]
        return (second, first) if self.operator == "Conv" else (first, second)


def conv(channels: int, features: int, window: int, function: str = "", dilation: int = 1) -> Layer:
    """A convolution whose results have the image's size."""
    attributes = {"pads": [dilation * (window // 2)] * 4, "dilations": [dilation] * 2}
    return Layer("Conv", (features, channels, window, window), attributes, function)


def transposed(channels: int, features: int, window: int, stride: int, pad: int, function: str = "") -> Layer:
    """A transposed convolution."""
    return Layer(
        "ConvTranspose", (channels, features, window, window), {"pads": [pad] * 4, "strides": [stride] * 2}, function
    )


def gcn(widths: Sequence[int], classes: int, window: int) -> tuple[Layer, ...]:
    """Segmentation by a global convolutional network (Peng et al. 2017) behind a ResNet of two blocks a stage.

    ``widths``: features of the stages; ``window``: of the long convolutions. Every stage's map is refined, enlarged and
    added to the one before.
    """
    layers = list[Layer]()

    def put(channels: int, features: int, taps: tuple[int, int], stride: int = 1, **more: Any) -> int:
        attributes = {"pads": [taps[0] // 2, taps[1] // 2] * 2, "strides": [stride] * 2}
        layers.append(Layer("Conv", (features, channels, *taps), attributes, **more))
        return len(layers) - 1

    def block(x: int, channels: int, features: int, stride: int) -> int:
        shortcut = x if channels == features else put(channels, features, (1, 1), stride, reads=x)
        first = put(channels, features, (3, 3), stride, reads=x, function="relu")
        return put(features, features, (3, 3), reads=first, adds=shortcut, function="relu")

    def refined(x: int) -> int:
        return put(classes, classes, (3, 3), reads=put(classes, classes, (3, 3), reads=x, function="relu"), adds=x)

    def score(x: int, channels: int) -> int:
        left = put(classes, classes, (1, window), reads=put(channels, classes, (window, 1), reads=x))
        right = put(classes, classes, (window, 1), reads=put(channels, classes, (1, window), reads=x), adds=left)
        return refined(right)

    put(3, widths[0], (7, 7), 2, function="relu")
    layers.append(
        Layer("MaxPool", (widths[0], widths[0], 3, 3), {"pads": [1] * 4, "strides": [2] * 2, "kernel_shape": [3, 3]})
    )
    maps, x, channels = list[int](), len(layers) - 1, widths[0]
    for features in widths:
        x = block(block(x, channels, features, 1 if features == channels else 2), features, features, 1)
        maps, channels = [*maps, x], features
    scores = [score(x, features) for x, features in zip(maps, widths, strict=True)]
    y = scores.pop()
    while scores:
        layers.append(replace(transposed(classes, classes, 4, 2, 1), reads=y, adds=scores.pop()))
        y = refined(len(layers) - 1)
    for _ in range(2):
        layers.append(replace(transposed(classes, classes, 4, 2, 1), reads=y))
        y = refined(len(layers) - 1)
    return tuple(layers)


def generator(features: Sequence[int], first: int, window: int) -> tuple[Layer, ...]:
    """A generator of images: from a point, each layer twice as large as the one before."""
    layers = [transposed(first, features[0], window, 1, 0, "relu")]
    for channels, count in zip(features, features[1:], strict=False):
        layers.append(transposed(channels, count, 4, 2, 1, "tanh" if count == features[-1] else "relu"))
    return tuple(layers)


def many(operators: int, channels: int = 3) -> tuple[Layer, ...]:
    """Half as many layers as operators, each with a function: windows and widths are drawn, few of them full vectors."""
    draw, layers = random.Random(0), list[Layer]()
    while 2 * len(layers) < operators:
        features, function = draw.choice((24, 32, 40, 48, 56, 64, 80, 96, 112, 128)), draw.choice(("relu", "tanh"))
        window, dilation = draw.choice((1, 3, 3, 5)), draw.choice((1, 1, 1, 2))
        if draw.random() < 0.1:
            layers.append(transposed(channels, features, 3, 1, 1, function))
        else:
            layers.append(conv(channels, features, window, function, dilation))
        channels = features
    return tuple(layers)
