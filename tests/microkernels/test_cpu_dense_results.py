"""Micro-kernels of the CPU dense family against float64: every code path, on every instruction set of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray

from haotuner.backends.cpu.timer_process import TimerProcess
from haotuner.backends.cpu.timing_library import measuring_library
from haotuner.microkernels.cpu.dense import CpuDense, tail_columns
from haotuner.microkernels.cpu.dense_demand import SPARSE
from haotuner.spec.kernel import MicroKernel
from tests.backends.native_jobs import job
from tests.run_folder import toolchain

pytestmark = pytest.mark.long

Floats = NDArray[np.float32]
FAMILY = CpuDense()
SENTINEL = float(np.float32(-7.25e30))
DEPTHS = (1, 3, 8, 19)  # under, over and between the unrolls
TARGETS = [
    pytest.param(("x86-64-v4", 16), id="avx512", marks=pytest.mark.isa("avx512f", "avx512vl")),
    pytest.param(("x86-64-v3", 8), id="avx2", marks=pytest.mark.isa("avx2", "fma")),
    pytest.param(("x86-64-v2", 4), id="sse", marks=pytest.mark.isa("sse4_2")),
]


def code_paths(lanes: int) -> list[MicroKernel]:
    one_buffer = 1023 // (lanes * 4)  # vectors of a row that TVM keeps on the stack in one piece
    tiles = [
        (1, 1, 1, 1, 0),  # rows, vectors, vectors of a panel, k unroll, steps fetched ahead
        (1, 12, 12, 8, 0),  # a flat tile, one wide panel
        (1, 12, 12, 8, 8),  # the same, its weight fetched ahead
        (1, 4, 4, 8, SPARSE),  # a line of many fetched ahead, of one stream
        (3, 4, 1, 8, SPARSE),  # and of four
        (6, 4, 4, 4, 0),  # the bulk tile
        (6, 4, 4, 4, 32),  # fetches past the end of every short sum
        (2, 4, 1, 2, 0),  # four weight streams
        (3, 4, 2, 8, 16),  # two streams of two vectors
        (16, 1, 1, 1, 0),
        (1, one_buffer + 2, one_buffer + 2, 2, 0),  # more vectors than one buffer, one panel
        (1, one_buffer + 1, 1, 4, 8),  # the same, a stream a vector
    ]
    whole = [FAMILY.kernel(mr, vectors * lanes, panel * lanes, ku, lanes, pf) for mr, vectors, panel, ku, pf in tiles]
    tails = [(5, lanes // 4), (6, lanes + lanes // 2), (1, 2 * lanes), (8, 3 * lanes + 1), (7, 3 * lanes - 1), (3, lanes)]
    more = [FAMILY.kernel(mr, nr, pw, ku, lanes, pf, n) for at, n in tails for mr, nr, pw, ku, _, pf in [sizes(whole[at])]]
    return list(dict.fromkeys(whole + more))  # of few lanes some tails are whole tiles


def sizes(kernel: MicroKernel) -> list[int]:
    return [value for _, value in kernel.params]


@dataclass(frozen=True)
class Built:
    path: Path
    kernels: list[MicroKernel]
    functions: dict[MicroKernel, Callable[..., Any]]


@pytest.fixture(scope="module", params=TARGETS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    mcpu, lanes = request.param
    kernels = code_paths(lanes)
    path = tmp_path_factory.mktemp(mcpu) / "kernels.so"
    measuring_library(kernels, mcpu, toolchain(), path)
    module = tvm_ffi.load_module(str(path))
    yield Built(path, kernels, {kernel: module.get_function(kernel.name) for kernel in kernels})


def test_every_depth_is_exact_on_whole_numbers(built: Built) -> None:
    for kernel in built.kernels:
        for k in DEPTHS:
            check(built, kernel, k, tiles=2, groups=2, seed=k)


def test_any_byte_offset_of_any_operand_is_right(built: Built) -> None:
    for kernel in built.kernels:
        for offset in (1, 2, 3, 4, 20):
            for x, w, y in ((offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, 4, 3)):
                check(built, kernel, 5, tiles=1, groups=1, offsets=(x, w, y))


def test_rows_may_lie_apart_and_in_reverse_and_x_rows_may_coincide(built: Built) -> None:
    for kernel in built.kernels:
        for more_x, more_y in ((0, 7), (3, 0), (1, 1), (61, 129)):
            check(built, kernel, 9, tiles=3, groups=1, more=(more_x, more_y))
        mr, nr = kernel["mr"], kernel["nr"]
        x, w = whole_numbers((mr, 9), 1), whole_numbers((nr // kernel["pw"], 9, kernel["pw"]), 2)
        y = np.full((mr, nr), SENTINEL, np.float32)
        built.functions[kernel](x[::-1], w, y[::-1], 1, 1, 0)
        np.testing.assert_array_equal(y, product(x, w))
        same = np.broadcast_to(x[:1], (mr, 9))
        built.functions[kernel](np.lib.stride_tricks.as_strided(x[:1], (mr, 9), (0, 4)), w, y, 1, 1, 0)
        np.testing.assert_array_equal(y, product(same, w))


def test_parts_of_a_sum_add_up_to_the_whole(built: Built) -> None:
    for kernel in built.kernels:
        mr, nr, pw, k = kernel["mr"], kernel["nr"], kernel["pw"], 29
        x, w = whole_numbers((2 * mr, k), 1), whole_numbers((2 * nr // pw, k, pw), 2)
        y = np.full((2 * mr, 2 * nr), np.nan, np.float32)  # the first part must not read it
        for first, last in ((0, 8), (8, 9), (9, k)):
            built.functions[kernel](x[:, first:last], w[:, first:last], y, 2, 2, int(first > 0))
        np.testing.assert_array_equal(y, product(x, w))


def test_nothing_is_touched_when_there_are_no_tiles_or_no_groups(built: Built) -> None:
    for kernel in built.kernels[:3]:
        x, w = whole_numbers((kernel["mr"], 4), 1), whole_numbers((kernel["nr"] // kernel["pw"], 4, kernel["pw"]), 2)
        for tiles, groups in ((0, 1), (1, 0), (0, 0)):
            y = np.full((kernel["mr"], kernel["nr"]), SENTINEL, np.float32)
            built.functions[kernel](x, w, y, tiles, groups, 0)
            assert (y == SENTINEL).all()


def test_long_sums_stay_within_float32_rounding(built: Built) -> None:
    for kernel in built.kernels[1:4]:
        rng = np.random.default_rng(3)
        x = rng.standard_normal((kernel["mr"], 2003)).astype(np.float32)
        w = rng.standard_normal((kernel["nr"] // kernel["pw"], 2003, kernel["pw"])).astype(np.float32)
        y = np.empty((kernel["mr"], kernel["nr"]), np.float32)
        built.functions[kernel](x, w, y, 1, 1, 0)
        size = product(np.abs(x), np.abs(w))
        assert (np.abs(y - product(x, w)) <= np.sqrt(2003) * np.finfo(np.float32).eps * size).all()


def test_ragged_columns_pass_verification_through_the_serving_code(built: Built) -> None:
    table = TimerProcess()
    for index, kernel in enumerate(built.kernels):
        for k in DEPTHS:
            shape = {**{key: kernel[key] for key in ("mr", "nr", "pw")}, "nt": tail_columns(kernel)}
            answer = table.verify(job(built.path, do="verify", kernel=index, k=k, col_block=kernel["nr"], **shape))
            assert answer["max_error"] < 1


def test_a_tile_larger_than_the_scratch_of_the_runtime_does_not_build(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mr9_nr64_.*tile too large"):
        measuring_library([FAMILY.kernel(9, 64, 64, 1, 16)], "x86-64-v2", toolchain(), tmp_path / "large.so")


def check(
    built: Built,
    kernel: MicroKernel,
    k: int,
    *,
    tiles: int,
    groups: int,
    seed: int = 0,
    offsets: tuple[int, int, int] = (0, 0, 0),
    more: tuple[int, int] = (5, 7),
) -> None:
    """One call on poisoned, guarded memory; whole numbers, so that the result must be exact."""
    rows, columns, pw = tiles * kernel["mr"], groups * kernel["nr"], kernel["pw"]
    x_memory = shifted((rows + 2, k + more[0]), offsets[0], np.nan)
    x_memory[:rows, :k] = whole_numbers((rows, k), seed)
    w_memory = shifted((columns // pw + 1, k, pw), offsets[1], np.nan)
    w_memory[:-1] = whole_numbers((columns // pw, k, pw), seed + 1)
    y_memory = shifted((rows + 2, columns + more[1]), offsets[2], SENTINEL)
    x, w, y = x_memory[:rows, :k], w_memory[:-1], y_memory[1:-1, :columns]
    built.functions[kernel](x, w, y, tiles, groups, 0)
    np.testing.assert_array_equal(y, product(x, w), err_msg=f"{kernel.name} k={k} offsets={offsets} more={more}")
    y[:] = SENTINEL
    assert (y_memory == SENTINEL).all(), f"{kernel.name} wrote outside its tile"


def product(x: Floats, w: Floats) -> NDArray[np.float64]:
    """Y in float64 from x and the packed weight."""
    weight = w.astype(np.float64).transpose(0, 2, 1).reshape(-1, w.shape[1])
    return np.asarray(x.astype(np.float64) @ weight.T, np.float64)


def whole_numbers(shape: tuple[int, ...], seed: int) -> Floats:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def shifted(shape: tuple[int, ...], offset: int, fill: float) -> Floats:
    """Memory that begins ``offset`` bytes after a multiple of 64."""
    size = int(np.prod(shape)) * 4
    raw = np.empty(size + 128, np.uint8)
    first = -raw.ctypes.data % 64 + offset
    array: Floats = raw[first : first + size].view(np.float32).reshape(shape)
    array[:] = fill
    return array
