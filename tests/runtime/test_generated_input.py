"""Odd input to generated kernels: layouts, overlaps, values and extents. As numpy has it, or a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.packs import document
from tests.runtime.test_generated import packed

SPECS = ("softmax:", "log_softmax:", "layer_norm:", "rms_norm:", "gelu:", "add_layer_norm:", "reduce_max:", "reduce_sum:",
         "transpose:")  # fmt: skip
ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "gelu")
INF = np.float32(np.inf)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("odd")
    ops, library = [packed(spec) for spec in SPECS], folder / "odd.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    with haotuner.load(folder / "pack", threads=2) as opened:
        yield opened


def views(m: int, n: int) -> dict[str, Any]:
    """The same values in other layouts, all with neighbours along the last axis."""
    plain = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
    raw = np.zeros(m * n * 4 + 64, np.uint8)
    odd = raw[4:][: m * n * 4].view(np.float32).reshape(m, n)  # four bytes from where numpy begins: no vector's boundary
    odd[...] = plain
    apart, frozen = np.zeros((2 * m, n + 5), np.float32), plain.copy()
    apart[::2, 3 : n + 3] = plain
    frozen.flags.writeable = False
    behind = np.zeros((m, n), np.float32)[::-1]
    behind[...] = plain
    return {"plain": plain, "misaligned": odd, "every other row": apart[::2, 3 : n + 3], "from the end": behind,
            "read-only": frozen, "broadcast": np.broadcast_to(plain[:1], (m, n))}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("m, n", [(1, 1), (7, 33), (41, 64)])
def test_layouts_change_nothing(pack, name, m, n):
    op, served = Op.parse(f"{name}:"), pack.op(name)
    for layout, x in views(m, n).items():
        out = numerics.Guarded((m, n))
        served.run(x, out=out.inner)
        verdict = numerics.check(op, {"x": np.ascontiguousarray(x)}, out.inner)
        assert verdict.wrong == 0 and not out.touched(), (layout, str(verdict))


def test_what_has_no_neighbours_along_the_last_axis_is_refused(pack):
    x = np.zeros((8, 16), np.float32)
    for view in (x[:, ::2], x[:, ::-1]):
        with pytest.raises(ValueError, match="softmax"):
            pack.op("softmax").run(view)
    broadcast = np.broadcast_to(np.float32(1), (8, 16))  # read-only memory cannot be passed on: it is copied, and served
    np.testing.assert_allclose(pack.op("softmax").run(broadcast), 1 / 16, rtol=1e-6)
    with pytest.raises(ValueError, match="softmax"):
        pack.op("softmax").run(x, out=np.zeros((16, 8), np.float32).T)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("m, n", [(1, 1), (3, 7), (41, 16), (9, 300)])
def test_an_output_may_be_the_input_itself(pack, name, m, n):
    op, served = Op.parse(f"{name}:"), pack.op(name)
    assert served.entry.operands[0].in_place
    for layout, x in views(m, n).items():
        if layout in ("read-only", "broadcast"):
            continue
        before = np.array(x)
        assert served.run(x, out=x) is x
        assert numerics.check(op, {"x": before}, np.ascontiguousarray(x)).wrong == 0, layout


@pytest.mark.parametrize("name", ROWS)
def test_an_output_over_a_part_of_an_input_is_refused(pack, name):
    memory = np.zeros((18, 16), np.float32)
    for out in (memory[1:9], memory.reshape(-1)[1:129].reshape(8, 16), memory[:16:2]):
        with pytest.raises(ValueError, match=f"{name}.*out shares memory with x without being that very tensor; pass x"):
            pack.op(name).run(memory[:8], out=out)


def test_an_output_is_apart_from_what_is_read_at_other_places(pack):
    square = np.zeros((3, 8, 8), np.float32)
    with pytest.raises(ValueError, match="transpose.*out shares memory with x, which is read meanwhile"):
        pack.op("transpose").run(square, out=square)
    x, residual = np.random.default_rng(0).standard_normal((2, 5, 33), dtype=np.float32)
    expected = pack.op("add_layer_norm").run(x, residual)
    np.testing.assert_array_equal(pack.op("add_layer_norm").run(x, residual.copy(), out=x.copy()), expected)
    for over in (0, 1):
        pair = [x.copy(), residual.copy()]
        np.testing.assert_array_equal(pack.op("add_layer_norm").run(*pair, out=pair[over]), expected)
    twice = np.ones((4, 8), np.float32)  # inputs may share memory
    output = pack.op("add_layer_norm").run(twice, twice, out=twice)
    np.testing.assert_allclose(output, 0, atol=1e-6)


def test_mixed_types_and_shapes_that_do_not_fit_are_refused(pack):
    x = np.zeros((4, 8), np.float32)
    for other in (x.astype(np.float64), x.astype(np.int32), x[:3], x[:, :7], x[0]):
        with pytest.raises((TypeError, ValueError), match="add_layer_norm"):
            pack.op("add_layer_norm").run(x, other)
    with pytest.raises((TypeError, ValueError), match="softmax"):
        pack.op("softmax").run(x, out=np.zeros((4, 8), np.float64))


def softmax(x: Any) -> Any:
    moved = np.exp(x - x.max(axis=1, keepdims=True))
    return moved / moved.sum(axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's own, of the values asked about
def test_rows_of_nan_and_infinity_are_as_numpy_has_them(pack):
    rows: dict[str, list[Any]] = {
        "all -inf": [-INF] * 5, "all inf": [INF] * 5, "all nan": [np.nan] * 5, "one nan": [1, 2, np.nan, 3, 4],
        "one inf": [1, INF, 0, 0, 0], "one -inf": [1, -INF, 0, 0, 0], "both": [INF, -INF, 0, 0, 0],
        "huge": [3e38, 3e38, -3e38, 1, 0], "tiny": [1e-42, -1e-42, 0.0, -0.0, 1e-45],
    }  # fmt: skip
    for length in (5, 40):  # a masked vector alone, and whole vectors before it
        x = np.array([row * (length // 5) for row in rows.values()], np.float32)
        np.testing.assert_allclose(pack.op("softmax").run(x), softmax(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(pack.op("reduce_max").run(x), x.max(axis=1))
        np.testing.assert_array_equal(np.isnan(pack.op("reduce_sum").run(x)), np.isnan(x.sum(axis=1)))
        moved = x - x.max(axis=1, keepdims=True)
        logs = moved - np.log(np.exp(moved).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(pack.op("log_softmax").run(x), logs, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sums_of_squares_that_overflow_are_as_float32_has_them(pack):
    x = np.full((2, 40), 1e25, np.float32)
    x[1] = 1.0
    output = pack.op("rms_norm").run(x)  # x / sqrt(inf)
    np.testing.assert_array_equal(output[0], 0)
    np.testing.assert_allclose(output[1], 1, rtol=1e-4)
    x[0, ::2] *= -1
    spread = pack.op("layer_norm").run(x)
    assert not np.isnan(spread[1]).any() and (spread[0] == 0).all()
    np.testing.assert_array_equal(pack.op("reduce_sum").run(np.full((1, 40), 3e38, np.float32)), [INF])


@pytest.mark.parametrize("m, n", [(0, 0), (0, 7), (7, 0), (1, 1), (1, 40), (40, 1)])
def test_extents_of_none_and_one(pack, m, n):
    x = np.ones((m, n), np.float32)
    for name in ROWS:
        output = pack.op(name).run(x)
        assert output.shape == (m, n) and (not x.size or numerics.check(Op.parse(f"{name}:"), {"x": x}, output).wrong == 0)
    assert pack.op("transpose").run(x[None]).shape == (1, n, m)
    np.testing.assert_array_equal(pack.op("reduce_sum").run(x), np.full(m, n))
    np.testing.assert_array_equal(pack.op("reduce_max").run(x), np.full(m, 1.0 if n else -np.inf))


@pytest.mark.slow
def test_more_elements_than_32_bits_count(pack):
    n = 2**31 // 3 + 5
    x = np.zeros((3, n), np.float32)  # read only, so that it takes no memory but the last page
    x[2, -1] = 2.5
    assert Shape.of(m=3, n=n)["n"] * 3 > 2**31
    np.testing.assert_array_equal(pack.op("reduce_max").run(x), [0, 0, 2.5])
    np.testing.assert_array_equal(pack.op("reduce_sum").run(x), [0, 0, 2.5])
