"""Convolutions of a pack: right at every shape, layout, stride and pad, and clear about what they cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.runtime.conv_packs import conv_pack
from tests.runtime.packs import LANES_HERE

SPECS = (
    "conv2d:c=6,f=10,r=3,s=3,pad=1",
    "conv2d:c=6,f=9,r=3,s=3,pad=1,layout=nhwc",
    "conv2d:c=6,f=10,r=3,s=2,pad=1.2,stride=2.3,dilation=2.1,groups=2",
    "conv2d:c=6,f=10,r=3,s=2,pad=0.3.2.1,stride=3.2,dilation=1.2,groups=2,layout=nhwc",
    "conv2d:c=5,f=19,r=1,s=1,stride=2",
    "conv2d:c=8,f=16,r=5,s=5,groups=8,layout=nhwc,pad=2",
    "conv2d:c=40,f=33,r=1,s=1,layout=nhwc",
    "conv1d:c=36,f=20,s=3,dilation=2,pad=2,layout=nwc",
    "conv2d:c=4,f=4,r=3,s=3,groups=4,pad=7",
    "conv2d:c=19,f=19,r=3,s=3,groups=19,pad=1,layout=nhwc",
    "conv2d:c=21,f=21,r=3,s=3,stride=2,groups=21,pad=1.2.0.1,layout=nhwc",
    "conv2d:c=3,f=6,r=5,s=5,stride=2,pad=2,groups=3",
    "conv2d:c=5,f=5,r=3,s=2,stride=3.1,dilation=2,pad=1,groups=5",
    "conv2d:c=5,f=5,r=3,s=3,pad=1,groups=5",
    "conv2d:c=5,f=5,r=5,s=4,pad=2,groups=5",
    "conv2d:c=4,f=4,r=7,s=7,pad=3,groups=4",
    "conv2d:c=3,f=3,r=3,s=3,stride=2,pad=1.0.0.2,groups=3",
    "conv2d:c=3,f=3,r=3,s=3,stride=1.3,pad=4,groups=3",
    "conv1d:c=8,f=8,s=4,groups=8,pad=2,dilation=2,stride=3",
    "conv1d:c=7,f=20,s=5,pad=4,dilation=2",
    "conv1d:c=7,f=20,s=5,pad=3.0,stride=2,layout=nwc",
    "conv_transpose1d:c=4,f=6,s=3,stride=5,layout=nwc,opad=1,dilation=2",
    "conv_transpose2d:c=6,f=8,r=4,s=3,stride=2,pad=1,groups=2",
    "conv_transpose2d:c=3,f=5,r=2,s=5,stride=1.3,dilation=3.2,pad=0.1.2.0,layout=nhwc",
    "conv_transpose2d:c=3,f=5,r=2,s=5,stride=1.3,pad=0.1.2.0,layout=nhwc",
    "conv_transpose2d:c=9,f=1,r=2,s=2,stride=2",
    "conv_transpose1d:c=5,f=7,s=11,stride=4,pad=3,opad=2",
)


WIDEST_FIRST = [
    LANES_HERE[-1],
    *(pytest.param(lanes, marks=pytest.mark.long) for lanes in LANES_HERE[:1] if len(LANES_HERE) > 1),
]


@pytest.fixture(scope="module", params=WIDEST_FIRST)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_pack(tmp_path_factory.mktemp("conv") / "pack", SPECS, request.param)


@pytest.fixture(params=[1, 2, 5])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def shapes(op: Op, draw: np.random.Generator, count: int) -> list[Shape]:
    """Drawn shapes of which the window leaves something."""
    accepted: list[Shape] = []
    while len(accepted) < count:
        shape = Shape.of({axis: int(draw.integers(1, 4 if axis == "b" else 20)) for axis in op.dynamic})
        if min(op.extents(shape).values()) >= 1:
            accepted.append(shape)
    return accepted


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "taps", "shape"),
    [
        (SPECS[1], np.s_[:, :, 1:2], {"b": 2, "h": 1, "w": 4}),
        (SPECS[1], np.s_[:, :, 1:2, 1:2], {"b": 1, "h": 1, "w": 1}),
        (SPECS[7], np.s_[..., 1:2], {"b": 1, "w": 2}),
    ],
)
def test_weights_that_meet_the_padding_alone_are_not_read(pack, spec, taps, shape):
    """0 times NaN would be NaN: few pixels of many channels are a stream of weights."""
    op, draw = Op.parse(spec), np.random.default_rng(0)
    inputs = numerics.draw(op, Shape.of(shape), draw, whole=True)
    marked = np.full_like(inputs["weight"], np.nan)
    marked[taps] = inputs["weight"][taps]
    output = pack.op(op.name).bind(marked)(inputs["x"])
    assert np.array_equal(output, numerics.reference(op, inputs))


@pytest.mark.parametrize("spec", SPECS)
def test_every_shape_is_right_with_any_strides(pack, spec):
    op, draw = Op.parse(spec), np.random.default_rng(0)
    for index, shape in enumerate(shapes(op, draw, 8)):
        inputs = numerics.draw(op, shape, draw, whole=True)
        bias = draw.integers(-3, 4, op["f"]).astype(np.float32) if index % 2 else None
        bound = pack.op(op.name).bind(inputs["weight"], bias)
        assert np.array_equal(bound.weight(), inputs["weight"])
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        bound(numerics.spaced(inputs["x"], 3), out=out.inner)
        expected = numerics.reference(op, inputs)
        if bias is not None:
            axes = op.meaning.output.axes(op.all_options())
            expected = expected + bias.reshape([-1 if axis == "f" else 1 for axis in axes])
        assert np.array_equal(out.inner, expected) and not out.touched(), shape
        x = inputs["x"][::-1].copy()[::-1]  # images in the other order, and from the second half of a larger array
        assert np.array_equal(bound(x), expected)
        x.setflags(write=False)
        assert np.array_equal(bound(x), expected)
        assert np.array_equal(bound(inputs["x"][:1][0]), expected[0])  # one image without the axis b


@pytest.mark.long
def test_a_pack_verifies(path):
    assert verify(path) == []


def test_what_cannot_be_is_refused_in_words(pack):
    op = pack.op(Op.parse(SPECS[0]).name)
    weight, x = np.ones((10, 6, 3, 3), np.float32), np.ones((2, 6, 5, 5), np.float32)
    bound = op.bind(weight, np.ones(10, np.float32))
    for wrong, kind, why in (
        (np.ones((2, 6, 5, 0), np.float32), ValueError, "image of 5 x 0"),
        (np.ones((2, 5, 5, 5), np.float32), ValueError, "x has extent 5 in axis 1; expected 6"),
        (np.ones((2, 6, 5, 5)), TypeError, "float64"),
        (np.ones((5, 5), np.float32), TypeError, "x must be"),
        (x.transpose(0, 1, 3, 2), ValueError, "inner stride 5; expected 1"),
        (x[..., ::-1], ValueError, "inner stride -1"),
        ([1.0], TypeError, "x must be"),
    ):
        with pytest.raises(kind, match=why):
            bound(wrong)
    for out, why in (
        (np.ones((2, 10, 5, 4), np.float32), "out is an image of 5 x 4; expected 5 x 5"),
        (np.ones((1, 10, 5, 5), np.float32), "extent 1 on axis b"),
        (np.lib.stride_tricks.as_strided(np.ones((10, 5, 5), np.float32), (2, 10, 5, 5), (0, 100, 20, 4)), "overlap"),
    ):
        with pytest.raises(ValueError, match=why):
            bound(x, out=out)
    room = np.ones(4000, np.float32)
    with pytest.raises(ValueError, match="shares memory with x"):
        bound(room[:300].reshape(2, 6, 5, 5), out=room[200:700].reshape(2, 10, 5, 5))
    assert bound(np.ones((0, 6, 5, 5), np.float32)).shape == (0, 10, 5, 5)
    assert np.array_equal(bound(np.broadcast_to(x[:1], (3, 6, 5, 5)).copy()), bound(np.repeat(x[:1], 3, axis=0)))
    for bad_weight, why in (
        (weight[:, :, 0], "weight has shape"),
        (weight[:9], "weight has shape"),
        (weight.astype(int), "weight is int"),
    ):
        with pytest.raises((TypeError, ValueError), match=why):
            op.bind(bad_weight)
    with pytest.raises(ValueError, match=r"bias has shape \(9,\)"):
        op.bind(weight, np.ones(9, np.float32))


def test_a_window_larger_than_the_image_is_refused(pack):
    op = Op.parse(SPECS[2])
    bound = pack.op(op.name).bind(np.ones((10, 3, 3, 2), np.float32))
    with pytest.raises(ValueError, match="pads smaller than the window"):
        bound(np.ones((1, 6, 2, 9), np.float32))
    with pytest.raises(ValueError, match="pads smaller than the window"):
        bound(np.ones((1, 6, 2, 9), np.float32), out=np.ones((1, 10, 1, 3), np.float32))


def test_repeated_images_are_read_in_place(pack):
    op = Op.parse(SPECS[0])
    bound = pack.op(op.name).bind(np.ones((10, 6, 3, 3), np.float32))
    x = np.random.default_rng(0).integers(-3, 4, (1, 6, 7, 7)).astype(np.float32)
    same = np.lib.stride_tricks.as_strided(x, (3, 6, 7, 7), (0, *x.strides[1:]))
    assert np.array_equal(bound(same), np.repeat(bound(x), 3, axis=0))


def test_life_of_what_is_bound(path):
    op = Op.parse(SPECS[1])
    x, weight = np.ones((1, 9, 9, 6), np.float32), np.ones((9, 6, 3, 3), np.float32)
    with haotuner.load(path) as old:
        bound = old.op(op.name).bind(weight)
        twin = bound.twin()
        expected = bound(x)
        old.warmup()
        bound.rebind(2 * weight, np.ones(9, np.float32))
        assert np.array_equal(bound(x), 2 * expected + 1) and np.array_equal(twin(x), expected)
        assert old.stats()[op.name]["calls"] >= 4
        new = haotuner.load(path)
        old.hand_over(new)
        assert np.array_equal(bound(x), 2 * expected + 1) and np.array_equal(bound.weight(), 2 * weight)
    new.close()
    for late in (lambda: bound(x), bound.weight, lambda: new.op(op.name).bind(weight)):
        with pytest.raises(PackClosed):
            late()
