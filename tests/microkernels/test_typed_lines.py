"""Whether windows are read from padded lines or from image columns, as ``kinds/conv_typed_lines.c`` says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from tests.run_folder import toolchain

TEXT = """
#include "kinds/conv.h"
/* Of what lays lines out and multiplies them nothing is called. */
void ht_pool_run(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) { __builtin_trap(); }
void* ht_room(ht_room_of which, size_t bytes) { __builtin_trap(); }
void ht_typed_turn(char* to, int64_t down, const char* from, int64_t step, int64_t rows, int64_t columns, int64_t size) {
  __builtin_trap();
}
int ht_conv_finish_typed(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase,
                         float* sums, int64_t stride, int64_t feature, int64_t features, int64_t pixel, int64_t pixels) {
  __builtin_trap();
}
#pragma GCC visibility push(default)
int asked(int channels, int features, int width, int lanes, int mr, int last);
int asked(int channels, int features, int width, int lanes, int mr, int last) {
  const ht_typed typed = {.x = {kDLUInt, 8}, .weight = {kDLInt, 8}, .terms = 4, .column = 4};
  const ht_side side = {.step = 1, .count = width, .move = 1, .at = -1, .by = 1, .tap_step = 1, .taps = 3};
  const ht_phase phase = {.tall = side, .wide = side, .depth = 9 * channels};
  const ht_conv conv = {.channels = channels, .features = features, .groups = 1, .last = (uint8_t)last, .lanes = lanes,
                        .typed = &typed};
  const ht_kernel kernel = {.mr = mr, .nr = lanes};
  const ht_conv_call call = {.batch = 1, .h = width, .w = width, .p = width, .q = width, .xw = last ? channels : 1};
  return ht_conv_has_lines(&conv, &kernel, &call, &phase);
}
"""


@pytest.fixture(scope="module")
def in_columns(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    folder = tmp_path_factory.mktemp("lines")
    source, out = folder / "asked.c", folder / "asked.so"
    source.write_text(TEXT)
    toolchain().link([], [source, RUNTIME_SOURCES / "kinds" / "conv_typed_lines.c"], [RUNTIME_SOURCES], out)
    function: Callable[..., int] = ctypes.CDLL(str(out)).asked
    return function


def test_lines_that_drop_many_features_of_many_pixels_become_columns(in_columns: Callable[..., int]) -> None:
    assert [in_columns(256, 256, width, 16, 12, 1) for width in (7, 14, 28, 112)] == [0, 0, 0, 1]
    assert [in_columns(64, 16, width, 16, 12, 1) for width in (7, 14, 28)] == [1, 1, 1], "copying takes longer"
    assert in_columns(64, 64, 28, 16, 12, 1) == 1 and in_columns(64, 64, 28, 4, 12, 1) == 0, (
        "narrow vectors multiply fewer terms"
    )


def test_fast_products_and_channels_first_keep_lines(in_columns: Callable[..., int]) -> None:
    assert in_columns(256, 256, 14, 16, 16, 1) == 1, "a tile of AMX"
    assert in_columns(256, 256, 14, 16, 12, 0) == 1
    assert in_columns(48, 16, 28, 16, 12, 1) == 0, "144 bytes are no whole steps"
