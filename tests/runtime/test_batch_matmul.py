"""batch_matmul of a pack: right at every shape, stride and layout, and clear about what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import haotuner
from haotuner.errors import PackClosed
from haotuner.host.processor import missing_flags
from haotuner.ops.products import finished
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, cc, run
from tests.runtime.packs import LANES
from tests.runtime.product_packs import product_pack

SPECS = (
    "batch_matmul:",
    "batch_matmul:layout=nt",
    "batch_matmul:layout=tn",
    "batch_matmul:k=6,layout=nt",
    "batch_matmul:n=20",
    "batch_matmul:k=7,layout=tn,epilogue=gelu+relu6",
    STEPPED := "batch_matmul:layout=tn,epilogue=relu6+relu",
)
ANY = "batch_matmul"
LEVELS = [level for level in LANES if not missing_flags(level)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packs of the widest and the narrowest level."""
    folders = {level: tmp_path_factory.mktemp("products") / level for level in {LEVELS[0], LEVELS[-1]}}
    return {level: product_pack(out, SPECS, LANES[level], level) for level, out in folders.items()}


WIDEST_FIRST = [LEVELS[-1], *(pytest.param(level, marks=pytest.mark.long) for level in LEVELS[:1] if len(LEVELS) > 1)]


@pytest.fixture(scope="module", params=WIDEST_FIRST)
def path(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Path:
    return paths[request.param]


@pytest.fixture(scope="module", params=[1, 3])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def whole(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers: sums of them are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_right_at_any_shape(pack: Any, spec: str) -> None:
    op, draw = Op.parse(spec), np.random.default_rng(1)
    for at in range(25):
        shape = Shape.of({axis: int(draw.integers(1, 4 if axis == "b" else 45)) for axis in op.dynamic})
        inputs = numerics.draw(op, shape, draw, whole=at % 2 == 0)
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        pack.op(op.name).run(**{name: numerics.spaced(value, 3) for name, value in inputs.items()}, out=out.inner)
        assert not numerics.check(op, inputs, out.inner, whole=at % 2 == 0).wrong, str(shape)
        assert not out.touched(), str(shape)


def test_verify_finds_nothing(path: Path) -> None:
    assert verify(path, most_flops=1e6) == []


def test_rows_do_not_depend_on_what_comes_with_them(pack: Any) -> None:
    for name in (ANY, f"{ANY}_nt", f"{ANY}_tn"):
        op, draw = Op.parse(name), np.random.default_rng(2)
        inputs = numerics.draw(op, Shape.of(b=5, m=41, n=37, k=19), draw)
        every = pack.op(name).run(**inputs)
        x, w = inputs["x"], inputs["w"]
        for b, m in ((1, 1), (2, 41), (5, 3), (3, 17)):
            some = x[:b, :, :m] if name.endswith("tn") else x[:b, :m]
            assert np.array_equal(pack.op(name).run(some, w[:b]), every[:b, :m])
        for n in (1, 3, 8, 9):
            some = w[:, :n] if name.endswith("nt") else w[..., :n]
            assert np.array_equal(pack.op(name).run(x, some), every[..., :n])
        # One element each: eight at a time, and fewer.
        one_x, one_w = (x[:, :, :1] if name.endswith("tn") else x[:, :1]), (w[:, :1] if name.endswith("nt") else w[..., :1])
        ones = pack.op(name).run(np.concatenate([one_x] * 2)[:9], np.concatenate([one_w] * 2)[:9])
        assert np.array_equal(ones[:5], every[:, :1, :1]) and np.array_equal(ones[5:], every[:4, :1, :1])
        scaled = pack.op(name).run(one_x, one_w, scale=np.array([0.5], np.float32), mask=np.ones((5, 1, 1), np.float32))
        assert np.array_equal(scaled, every[:, :1, :1] * np.float32(0.5) + 1)


@pytest.mark.parametrize("name", [ANY, f"{ANY}_nt", f"{ANY}_tn"])
@pytest.mark.parametrize(("m", "n", "k"), [(3, 3, 19), (1, 4, 3), (5, 2, 900), (2, 1, 1)])
def test_matrices_computed_side_by_side_have_the_bits_of_one_alone(pack: Any, name: str, m: int, n: int, k: int) -> None:
    op, draw = Op.parse(name), np.random.default_rng(3)
    inputs = numerics.draw(op, Shape.of(b=36, m=m, n=n, k=k), draw)
    alone = np.concatenate([pack.op(name).run(inputs["x"][i : i + 1], inputs["w"][i : i + 1]) for i in range(36)])
    beside = {"scale": np.array([0.5], np.float32), "mask": np.ones((36, 1, 1), np.float32)}
    for change in (np.copy, lambda a: a.repeat(2, axis=-1)[..., ::2], lambda a: a[..., ::-1].copy()[..., ::-1]):
        x, w = (change(inputs[key]) for key in ("x", "w"))
        assert np.array_equal(pack.op(name).run(x, w), alone)
        assert np.array_equal(pack.op(name).run(x, w, **beside), alone * np.float32(0.5) + 1)
    # Heads of a tensor: (4, tokens, 9, features), so that matrices lie evenly spaced nine at a time.
    x, w = (inputs[key].reshape(4, 9, *inputs[key].shape[1:]).transpose(0, 2, 1, 3).copy() for key in ("x", "w"))
    out = np.full((4, m, 9, n + 1), 7, np.float32)
    pack.op(name).run(x.transpose(0, 2, 1, 3), w.transpose(0, 2, 1, 3), out=out.transpose(0, 2, 1, 3)[..., :n])
    assert np.array_equal(out.transpose(0, 2, 1, 3)[..., :n].reshape(36, m, n), alone) and (out[..., n] == 7).all()


@pytest.mark.parametrize("level", LEVELS)
def test_few_rows_or_columns_have_the_bits_of_many(level: str, paths: dict[str, Path], tmp_path: Path) -> None:
    name, lanes = f"{ANY}_nt", LANES[level]
    path = paths[level] if level in paths else product_pack(tmp_path / level, ["batch_matmul:layout=nt"], lanes, level)
    x, w = (np.random.default_rng(seed).standard_normal((2, 41, 22), dtype=np.float32) for seed in (4, 5))
    with haotuner.load(path, threads=1) as opened:
        for terms in (2, 3, 4, 21, 22):
            every = opened.op(name).run(x[..., :terms], w[..., :terms])
            for few, many in product(range(1, 10), (1, 7, 8, 9, 17, 41)):
                for m, n in ((few, many), (many, few)):
                    out = numerics.Guarded((2, m, n))
                    opened.op(name).run(x[:, :m, :terms], w[:, :n, :terms], out=out.inner)
                    assert np.array_equal(out.inner, every[:, :m, :n]) and not out.touched(), (terms, m, n)


@pytest.mark.parametrize("name", [ANY, f"{ANY}_nt", f"{ANY}_tn"])
@pytest.mark.parametrize("terms", [3, 40])
def test_outputs_that_no_l2_holds_have_the_bits_of_their_parts(pack: Any, name: str, terms: int) -> None:
    """They are written along their rows, and their lines are asked for ahead; parts of them are not."""
    inputs = numerics.draw(Op.parse(name), Shape.of(b=2, m=641, n=837, k=terms), np.random.default_rng(6))
    out = numerics.Guarded((2, 641, 837))
    run = pack.op(name).run
    run(**inputs, out=out.inner)
    x, w = inputs["x"], inputs["w"]
    for first in range(0, 641, 70):
        some = x[..., first : first + 70] if name.endswith("tn") else x[:, first : first + 70]
        assert np.array_equal(run(some, w), out.inner[:, first : first + 70]), first
    assert not out.touched()


def test_batch_axes_are_broadcast_as_numpy_does(pack: Any) -> None:
    run = pack.op(ANY).run
    for x_batch, w_batch in (((2, 3), (2, 3)), ((2, 3), (3,)), ((), (4,)), ((2, 1, 3), (5, 1)), ((), ()), ((1, 4), (2, 4))):
        x, w = whole(*x_batch, 5, 7), whole(*w_batch, 7, 6, seed=1)
        assert np.array_equal(run(x, w), x @ w)
    with pytest.raises(ValueError, match="do not go together"):
        run(whole(2, 5, 7), whole(3, 7, 6))


def test_heads_are_slices_of_one_tensor(pack: Any) -> None:
    b, t, h, d = 2, 9, 3, 8
    q, k, v = (whole(b, t, h, d, seed=seed).transpose(0, 2, 1, 3) for seed in range(3))
    scores = pack.op(f"{ANY}_nt").run(q, k)
    assert np.array_equal(scores, q @ k.transpose(0, 1, 3, 2))
    out = np.full((b, t, h, d), 7, np.float32)
    assert pack.op(ANY).run(scores, v, out=out.transpose(0, 2, 1, 3)).shape == (b, h, t, d)
    assert np.array_equal(out.transpose(0, 2, 1, 3), scores @ v)


@pytest.mark.parametrize("name", [ANY, f"{ANY}_nt", f"{ANY}_tn"])
def test_factors_may_lie_at_any_strides(pack: Any, name: str) -> None:
    x, w = whole(3, 11, 13), whole(3, 13, 10, seed=1)
    expected = x @ w
    x_as = x.transpose(0, 2, 1) if name.endswith("tn") else x
    w_as = w.transpose(0, 2, 1) if name.endswith("nt") else w
    for change in (
        np.ascontiguousarray,
        np.asfortranarray,
        lambda a: a.repeat(2, axis=-1)[..., ::2],
        lambda a: a[..., ::-1].copy()[..., ::-1],
        lambda a: a[:, ::-1].copy()[:, ::-1],
        lambda a: a[::-1].copy()[::-1],
    ):
        assert np.array_equal(pack.op(name).run(change(x_as), change(w_as)), expected)


def test_a_row_that_is_repeated_need_not_be_stored_twice(pack: Any) -> None:
    x, w = np.broadcast_to(whole(1, 1, 7), (2, 5, 7)), np.broadcast_to(whole(7, 1), (2, 7, 6))
    assert np.array_equal(pack.op(ANY).run(x, w), x @ w)


@pytest.mark.parametrize("shape", [(0, 5, 4, 3), (2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0), (1, 1, 1, 1), (0, 0, 0, 0)])
def test_empty_and_single_extents(pack: Any, shape: tuple[int, ...]) -> None:
    b, m, n, k = shape
    x, w = whole(b, m, k), whole(b, k, n, seed=1)
    assert np.array_equal(pack.op(ANY).run(x, w), x @ w)
    if k == 0:
        out = np.full((b, m, n), np.nan, np.float32)
        assert np.array_equal(pack.op(ANY).run(x, w, out=out, bias=whole(n)), np.broadcast_to(whole(n), (b, m, n)))


def test_scale_bias_and_mask_are_added_in_that_order(pack: Any) -> None:
    x, w = whole(2, 3, 9, 8), whole(2, 3, 8, 37, seed=1)
    for scale in (None, 0.5, whole(2, 3), whole(3), whole(2, 1)):
        for bias in (None, whole(37)):
            for mask in (None, whole(2, 1, 9, 37), whole(37), whole(9, 1), whole(2, 3, 1, 1)):
                output = pack.op(ANY).run(x, w, scale=scale, bias=bias, mask=mask)
                assert np.array_equal(output, finished(x @ w, bias, scale, mask))
    hidden = np.where(np.arange(37) < 5, 0, -np.inf).astype(np.float32)
    assert np.isneginf(pack.op(ANY).run(x, w, mask=hidden)[..., 5:]).all()


def test_an_epilogue_follows_what_comes_beside(pack: Any) -> None:
    run = pack.op(Op.parse(STEPPED).name).run
    for m, n in ((9, 37), (1, 1)):
        x, w = whole(2, 7, m), whole(2, 7, n, seed=1)
        bias, mask = whole(n), whole(m, n, seed=2)
        y = x.transpose(0, 2, 1) @ w
        assert np.array_equal(run(x, w), np.clip(y, 0, 6))
        assert np.array_equal(run(x, w, scale=0.5, bias=bias, mask=mask), np.clip(finished(y, bias, 0.5, mask), 0, 6))
    assert np.array_equal(run(x[:, :0].copy(), w[:, :0].copy()), np.zeros((2, 1, 1)))


def test_what_was_seen_is_counted(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        before = pack.stats()[ANY]  # counts go on while the library stays mapped
        pack.op(ANY).run(whole(2, 3, 4), whole(2, 4, 5))
        pack.op(ANY).run(whole(2, 41, 4), whole(2, 4, 5))
        after = pack.stats()[ANY]
        assert {key: after[key] - before[key] for key in after} == {"calls": 2, "fallbacks": 0, "out_of_range": 1}
        assert pack.op(ANY).cell({"b": 1, "m": 1, "n": 5, "k": 1}) == 1
    with pytest.raises(PackClosed):
        pack.op(ANY)


X, W, Y = whole(2, 5, 7), whole(2, 7, 6), np.zeros((2, 5, 6), np.float32)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"w": whole(2, 8, 6)}, ValueError, "w has extent 8 on axis k, x has 7"),
    ({"w": whole(3, 7, 6)}, ValueError, "x has 2 matrices in axis 3 from the last, w has 3"),
    ({"x": whole(7)}, ValueError, "x has rank 1; expected 2 axes or more"),
    ({"x": X.astype(np.float64)}, TypeError, "x has dtype float64; expected float32"),
    ({"w": W.astype(np.int32)}, TypeError, "w has dtype int32; expected float32"),
    ({"x": [[1.0]]}, TypeError, "x is a list"),
    ({"out": np.zeros((2, 5, 7), np.float32)}, ValueError, "out has extent 7 on axis n, w has 6"),
    ({"out": np.zeros((2, 4, 6), np.float32)}, ValueError, "out has extent 4 on axis m, x has 5"),
    ({"out": np.zeros((1, 5, 6), np.float32)}, ValueError, "out has extent 1 in axis 0, the product has 2"),
    ({"out": np.zeros((5, 6), np.float32)}, ValueError, "out has rank 2, the product has 3 axes"),
    ({"out": np.zeros((2, 5, 6), np.float16)}, TypeError, "out has dtype float16"),
    ({"out": np.zeros((2, 6, 5), np.float32).transpose(0, 2, 1)}, ValueError, "out has inner stride 5; expected 1"),
    ({"out": np.lib.stride_tricks.as_strided(Y, (2, 5, 6), (120, 8, 4))}, ValueError, "out: its elements overlap"),
    ({"out": np.broadcast_to(Y[:1], (2, 5, 6))}, ValueError, "out"),
    ({"bias": whole(5)}, ValueError, "bias has extent 5 in axis 0, where the output has 6; give that or 1"),
    ({"bias": whole(1, 6)}, ValueError, "bias has rank 2; expected one axis"),
    ({"mask": whole(2, 2, 5, 6)}, ValueError, "mask has rank 4, over the 3 axes"),
    ({"mask": whole(2, 4, 6)}, ValueError, "mask has extent 4 in axis 1, where the output has 5"),
    ({"scale": whole(3)}, ValueError, "scale has extent 3 in axis 0, where the output has 2"),
    ({"mask": whole(5, 6).astype(np.float16)}, TypeError, "mask has dtype float16"),
    ({"scale": "much"}, TypeError, "scale is a str"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD)
def test_what_does_not_fit_is_refused_in_words(
    pack: Any, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        pack.op(ANY).run(**{"x": X, "w": W, "out": Y.copy(), **change})


def test_an_output_shares_memory_with_nothing_that_is_read(pack: Any) -> None:
    room = whole(3000)
    y = room[:60].reshape(2, 5, 6)
    others = {
        "x": room[40:110].reshape(2, 5, 7),
        "w": room[59:143].reshape(2, 7, 6),
        "bias": room[10:16],
        "scale": room[3:5],
        "mask": room[50:56],
    }
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"out shares memory with {name}"):
            pack.op(ANY).run(**{"x": X, "w": W, name: value}, out=y)
    assert np.array_equal(pack.op(ANY).run(X, W, out=room[60:120].reshape(2, 5, 6)), X @ W)


def test_from_c(path: Path, tmp_path: Path) -> None:
    """Heads of attention, and what hostile callers hand in; sanitizers watch."""
    program = cc([HERE / "products.c", *LIBRARY], tmp_path / "products", *ASAN)
    assert run([program, path], LD_PRELOAD="").stdout.strip() == "right"


@st.composite
def operands(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Factors cut out of larger arrays at any strides, zero and negative ones among them, and an output of ordered axes."""
    b, m, n, k = (draw(st.integers(0, most)) for most in (3, 12, 40, 11))
    layout = draw(st.sampled_from(("nn", "nt", "tn")))

    def strided(rows: int, columns: int, batched: bool, seed: int) -> Any:
        steps = [draw(st.sampled_from((1, 2, -1))) for _ in range(2)]
        order = draw(st.permutations((0, 1, 2)))
        large = whole(*(max(1, e) * 2 for e in (b if batched else 1, rows, columns)), seed=seed)
        factor = np.ascontiguousarray(large.transpose(order)).transpose(np.argsort(order))
        factor = factor[: b if batched else 1, :: steps[0], :: steps[1]][:, :rows, :columns]
        flat = draw(st.booleans()) and rows > 0
        return np.broadcast_to(factor[:, :1], factor.shape) if flat else factor

    x = strided(*((k, m) if layout == "tn" else (m, k)), draw(st.booleans()), 0)
    w = strided(*((n, k) if layout == "nt" else (k, n)), draw(st.booleans()), 1)
    return layout, x, w


def check(pack: Any, case: tuple[Any, Any, Any], wide: int, turned: bool) -> None:
    """The product into a part of a larger output, whose rows may be the outer axis; the rest of it stays."""
    layout, x, w = case
    expected = (x.swapaxes(1, 2) if layout == "tn" else x) @ (w.swapaxes(1, 2) if layout == "nt" else w)
    size = expected.shape if not turned else (expected.shape[1], expected.shape[0], expected.shape[2])
    out = np.full((*size[:-1], size[-1] + wide), 9, np.float32)
    part = out[..., : size[-1]].transpose(1, 0, 2) if turned else out[..., : size[-1]]
    pack.op(ANY if layout == "nn" else f"{ANY}_{layout}").run(x, w, out=part)
    assert np.array_equal(part, expected)
    assert (out[..., size[-1] :] == 9).all()


@given(case=operands(), wide=st.integers(0, 5), turned=st.booleans())
@settings(max_examples=60, deadline=None)
def test_fuzz(pack: Any, case: tuple[Any, Any, Any], wide: int, turned: bool) -> None:
    check(pack, case, wide, turned)


@pytest.mark.slow
@given(case=operands(), wide=st.integers(0, 5), turned=st.booleans())
@settings(max_examples=1500, deadline=None)
def test_fuzz_for_longer(pack: Any, case: tuple[Any, Any, Any], wide: int, turned: bool) -> None:
    check(pack, case, wide, turned)
