"""Convolutions by tiles that read windows from padded lines of the image: nothing is laid out for each tap.

An image of few channels is copied once, with its pads, where image columns (``conv.py``) copy it once for each tap. Pixels
are numbered along the padded lines. So a tap of all pixels is one run of memory, and a term of a sum is a place from which
it starts (``runtime/native/kinds/conv_lines.c``). A tile's rows and columns, and the weight, are those of ``conv.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from haotuner.microkernels.cpu.conv import CpuConv, channels_last, last_tile, of_group
from haotuner.microkernels.cpu.conv_direct import is_direct
from haotuner.microkernels.cpu.dense import MAX_TILE_ROWS, tile_program
from haotuner.microkernels.cpu.dense_demand import MAX_STREAMS
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import Window, windows
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

# Cycles of a vector of pixels, Golden Cove with AVX-512: copying a term of windows that move by 1, 2 or more, of channels
# last a run of terms, and writing a result.
FIRST, LAST_RUN, WRITTEN = (2.0, 8.0, 14.0), 80.0, 3.0
LINES = 8  # as HT_CONV_LINES
TERMS, ROOM = 4096, 72 * 1024  # as conv.h has them: terms of a sum, floats of lines
MOST_CHANNELS, FEW_CHANNELS = 64, 16  # of a group: channels first by ones, else; more lie in more lines than L1 holds
MOST_ROWS = 8  # channels last: addresses of more pixels, each with a term's place added, find no registers
MOST_PIXELS = 64  # of a tile, which reads so many behind the last line
LEAST_SHARE = 0.5  # of the registers that a tile fills with sums
UNROLL = 1  # more makes LLVM load all weights of several terms ahead, and spill tall tiles: 12 x 2 at half the rate


class CpuConvLines(CpuConv):
    """Family ``cpu_conv_lines_fp32``; parameters as ``cpu_conv_fp32``, and wt=8."""

    name = "cpu_conv_lines_fp32"
    frontier = 10  # beside those of image columns, within the same minute
    first_programs = True  # those of ``cpu_conv_fp32`` but for where terms are read, so that one analysis fits both
    own_order = True  # sums that image columns cut in parts are whole here

    def serves(self, op: Op) -> bool:
        """Windows of few channels and more than one tap, not transposed, of which a line of outputs finds room."""
        if not super().serves(op) or "transpose" in op.kind or is_direct(op):
            return False
        result = windows(op.kind, dict(op.static), op.all_options())
        sides, wide, channels = list(result.values()), result["w"], of_group(op, "c")
        step = channels * (wide.stride if channels_last(op) else _residues(wide))  # floats of a pixel, all residues
        down = prod(_residues(side) * (1 + _beyond(side)) for side in sides if side is not wide)
        behind = prod(_residues(side) for side in sides if side is not wide) * _beyond(wide)
        tile = MOST_PIXELS * (step if channels_last(op) else 1)
        taps = prod(side.taps for side in sides)
        dense = not channels_last(op) and all(side.stride == 1 for side in sides)
        few = channels <= (MOST_CHANNELS if dense else FEW_CHANNELS) and taps > 1
        return few and taps * channels <= TERMS and step * (down * (1 + _beyond(wide)) + behind) + tile <= ROOM

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers."""
        lanes, registers = device.wave_width, device.registers_per_thread
        for rows in range(1, (MOST_ROWS if channels_last(op) else MAX_TILE_ROWS) + 1):
            for vectors in range(1, MAX_STREAMS + 1):
                if LEAST_SHARE * registers <= rows * vectors < registers:
                    yield self.from_lines(op, rows, vectors * lanes, lanes)

    def from_lines(self, op: Op, mr: int, nr: int, vl: int) -> MicroKernel:
        """The micro-kernel of these parameters for an op."""
        params = super().kernel(op, mr, nr, UNROLL, vl).params
        bare = tuple(pair for pair in params if pair[0] != "ep")
        return with_epilogue(MicroKernel(self.name, (*bare, ("wt", LINES))), op.epilogue)

    def against_first(self, op: Op, shapes: Sequence[Shape]) -> NDArray[np.float64]:
        """Expected time over that of image columns by the same tile, at each shape: what ``demand`` does not count.

        In cycles of a vector of pixels and a term: image columns copy each term, lines each element of the image.
        """
        result = windows(op.kind, dict(op.static), op.all_options())
        wide, channels, features = result["w"], of_group(op, "c"), of_group(op, "f")
        taps, moves = (prod(getattr(side, name) for side in result.values()) for name in ("taps", "stride"))
        run = channels * (wide.taps if wide.dilation == 1 else 1)
        copied = LAST_RUN / run + 1.0 if channels_last(op) else FIRST[min(wide.stride, len(FIRST)) - 1]
        multiplied, written = features / 2, WRITTEN * features / (channels * taps)
        outputs = np.array([wide.out(op.extents(shape)["w"]) for shape in shapes], np.float64)
        ours = multiplied * (1.0 + _beyond(wide) / outputs) + copied * min(moves / taps, 1.0) + written
        return np.asarray(ours / (multiplied + copied + written), np.float64)

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """As that of image columns, with the places of terms."""
        import tvm

        params = dict(kernel.params)
        terms_of: Literal["x", "w"] = "x" if kernel["cl"] else "w"
        programs = {symbol: tile_program(kernel, symbol, terms_of=terms_of)}
        if last_tile(kernel):
            short = MicroKernel(kernel.family, tuple((k, params.get("mt", v) if k == "mr" else v) for k, v in kernel.params))
            programs[f"{symbol}_tail"] = tile_program(short, f"{symbol}_tail", params.get("nt", 0), terms_of=terms_of)
        return tvm.IRModule(programs)


def _residues(side: Window) -> int:
    """Of the stride that taps meet, at most."""
    return min(side.stride, (side.taps - 1) * side.dilation + 1)


def _beyond(side: Window) -> int:
    """Elements of a residue that windows reach beyond those of their outputs."""
    return (side.taps - 1) * side.dilation // side.stride
