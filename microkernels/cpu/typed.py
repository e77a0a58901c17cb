"""Dense in bf16, fp16 and int8 for CPUs: the register tile of ``dense.py`` over words of several terms, in C.

In fp32 with results of another type, too.

The weight is packed as panels ``[panel][k / terms][pw]`` of words (``native/kinds/typed_tile.h``): two bf16 or four int8
terms of one column side by side, as ``vdpbf16ps`` and ``vpdpbusd`` multiply them, single terms of fp16 and fp32. A CPU
without those instructions widens the same words, so one packed weight serves both. Sums are fp32 or int32 in a block that
stays in cache; the runtime finishes them there. AMX tiles (``typed_source.py``) read the same panels.

Epilogues of cheap steps that are done while whole sums become the result's type: one pass instead of three.

A narrow layer of bytes multiplies a few words a sum: floats of sums, the epilogue's program and the rounding to bytes,
a pass over the block each, took longer than its products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.microkernels.cpu import typed_source
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.epilogue import code_of, steps_of, with_epilogue
from haotuner.microkernels.cpu.typed_source import STORED
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import operands_of
from haotuner.spec.demand import Demand, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

MAX_ROWS, MAX_VECTORS = 12, 6
UNROLLS = (1, 2)
PREFETCHES = (0, 16)  # words of a column ahead
_TILE = ("mr", "nr", "pw", "ku", "vl", "pf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Layout of terms in the packed weight. ``terms`` of a column in a row of a panel, ``bytes`` of a column there."""

    terms: int
    bytes: int

    def depth(self, k: int) -> int:
        """Rows of a panel."""
        return -(-k // self.terms)

    def floats(self, pw: int) -> int:
        """32-bit words of a panel's row."""
        return pw * self.bytes // 4


WORDS = {
    "bf16": Word(terms=2, bytes=4),
    "fp16": Word(terms=1, bytes=2),
    "int8": Word(terms=4, bytes=4),
    "fp32": Word(
        terms=1, bytes=4
    ),  # where results have another type; ops that are fp32 throughout have families of their own
}
_CONVERTED = "_converted"


def typed_name(kind: str, dtype: str) -> str:
    """Name of the typed family of a kind: ``dense``, ``conv``, ``conv_direct`` or ``batch_matmul``."""
    return f"cpu_{kind}{_CONVERTED if dtype == 'fp32' else ''}_{dtype}"


def serves_type(op: Op, dtype: str) -> bool:
    """True if typed families of a type compute the op's types."""
    return op.dtype == dtype and not op.plain


def word_for(op: Op) -> Word | None:
    """Word of an op's packed weight; None where the op is fp32 throughout, whose panels hold plain floats."""
    return None if op.plain else WORDS.get(op.dtype)


def word_of(kernel: MicroKernel) -> Word | None:
    """Word in which the kernel's family packs a weight; None of ops that are fp32 throughout."""
    if not kernel.family.startswith("cpu_") or (dtype_of(kernel) == "fp32" and _CONVERTED not in kernel.family):
        return None
    return WORDS.get(dtype_of(kernel))


def has_program(kernel: MicroKernel) -> bool:
    """True if a typed kernel is a tile; depthwise convolutions are loops of the runtime."""
    return not kernel.family.startswith("cpu_conv_direct_")


def dtype_of(kernel: MicroKernel) -> str:
    """The dtype of the ops that a typed kernel serves."""
    return kernel.family.rpartition("_")[2]


def input_of(kernel: MicroKernel) -> str:
    """The type of the inputs of those ops: bytes have a sign where the kernel says so."""
    own = DTYPES[dtype_of(kernel)]
    return own.name if dict(kernel.params).get("sg") else own.of("input")


def begun(kernel: MicroKernel) -> int:
    """Words a column that say what its sums begin with: of bytes with a sign, which are multiplied as 128 more."""
    return dict(kernel.params).get("sg", 0)


def output_of(kernel: MicroKernel) -> str:
    """The type that results are stored in."""
    return STORED[kernel["ot"]]


def program_of(kernel: MicroKernel) -> MicroKernel:
    """The tile alone, as dense has it: kernels share it whatever follows their sums and whatever lays out their factors."""
    params = dict(kernel.params)
    selected = tuple((name, params[name]) for name in (*_TILE, "am", "sg") if name in params)
    return MicroKernel(typed_name("dense", dtype_of(kernel)), selected)


def programs_of(kernel: MicroKernel) -> tuple[MicroKernel, ...]:
    """Tiles that calls of a typed kernel are cut into: its own, and of batched products by vectors every narrower one.

    By vectors, from one on; AMX tiles and those over packed weights are whole.
    """
    own = program_of(kernel)
    if not kernel.family.startswith("cpu_batch_matmul_") or typed_source.on_tiles(kernel):
        return (own,)
    widths = range(own["vl"], own["nr"] + 1, own["vl"])
    return tuple(MicroKernel(own.family, tuple((k, w if k == "nr" else v) for k, v in own.params)) for w in widths)


def typed_params(
    op: Op, tile: tuple[int, int, int, int, int, int], *, on_tiles: bool = False
) -> tuple[tuple[str, int], ...]:
    """Parameters of (mr, nr, pw, ku, vl, pf) for an op's types: the output's, and whether bytes that come in have a sign.

    ``on_tiles``: in AMX registers.
    """
    out = STORED.index(op.dtype_of(op.meaning.output))
    signed = op.dtype == "int8" and op.dtype_of(op.meaning.operands[0]) == "int8"
    kind = (("am", 1),) if on_tiles else ()
    return (*zip(_TILE, tile, strict=True), *kind, ("ot", out), *((("sg", 1),) if signed else ()))


class CpuTyped(CpuDense):
    """Families ``cpu_dense_bf16``, ``_fp16``, ``_int8``, ``_converted_fp32``.

    Parameters: mr, nr, pw, ku, vl, pf and ep as dense's, ot the output's type.
    ``am``, where it is there: the tile is in AMX registers.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.name = typed_name("dense", dtype)

    def serves(self, op: Op) -> bool:
        """Dense in the family's type, n and k static."""
        return op.kind == "dense" and serves_type(op, self.dtype) and op.dynamic == ("m",)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile of whole vectors up to the family's limits; selection refuses what does not fit."""
        lanes = device.wave_width
        for rows in range(1, MAX_ROWS + 1):
            for vectors in range(1, MAX_VECTORS + 1):
                for streams in (count for count in range(1, vectors + 1) if vectors % count == 0):
                    for unroll in UNROLLS:
                        for ahead in PREFETCHES:
                            width = vectors * lanes
                            yield self.typed(op, (rows, width, width // streams, unroll, lanes, ahead))
        if typed_source.has_tiles(device, self.dtype):
            for tile in typed_source.shapes(lanes):
                yield self.typed(op, tile, on_tiles=True)

    def typed(self, op: Op, tile: tuple[int, int, int, int, int, int], *, on_tiles: bool = False) -> MicroKernel:
        """The micro-kernel of (mr, nr, pw, ku, vl, pf) for an op's output type and epilogue, or of that on AMX tiles."""
        kernel = MicroKernel(self.name, typed_params(op, tile, on_tiles=on_tiles))
        return with_epilogue(kernel, op.epilogue) if op.epilogue else kernel

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """As dense's: sums, a row of the panel, and a broadcast word; or tile registers, which are fewer."""
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        if typed_source.on_tiles(kernel):
            return typed_source.footprint(kernel)
        step_bytes = (rows + kernel["nr"]) * kernel["ku"] * WORDS[self.dtype].bytes
        return Footprint(registers_per_thread=rows * vectors + vectors + 1, shared_bytes=step_bytes)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Panel width; sums of bf16 are rounded in another order on AMX tiles, and one plan has one order."""
        return (kernel["pw"], *typed_source.order(kernel, self.dtype))

    def demand(self, requested: DemandQuery) -> Demand:
        """As dense's, or of AMX tiles."""
        return typed_source.demand(requested, super().demand(requested), WORDS[self.dtype].terms)

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """An empty TVM module: ``typed_source`` says the program in C."""
        import tvm

        return tvm.IRModule({})


TYPED_FAMILIES = tuple(CpuTyped(dtype) for dtype in WORDS)


_HARD = "V(min, ps)(splatf(6.0f), V(max, ps)(splatf(0.0f), V(add, ps)(value, splatf(3.0f))))"
_GATE = f"V(mul, ps)({_HARD}, splatf((float)(1.0 / 6)))"
# What a step makes of `value`; {0}, {1}: what it reads. Of two numbers the second comes out where one is NaN: NaN stays NaN.
_STEPS = {
    "scale": "V(mul, ps)(value, {0})",
    "bias": "V(add, ps)(value, {0})",
    "relu": "V(max, ps)(splatf(0.0f), value)",
    "relu6": "V(min, ps)(splatf(6.0f), V(max, ps)(splatf(0.0f), value))",
    "clamp": "V(min, ps)({1}, V(max, ps)({0}, value))",
    "hardsigmoid": _GATE,
    "hardswish": f"V(mul, ps)(value, {_GATE})",
}


def stepped_symbol(kernel: MicroKernel) -> str | None:
    """Name of the function that a kernel's sums become results by; None: its epilogue is a program of its own, or none."""
    steps = steps_of(kernel)
    if word_of(kernel) is None or DTYPES[dtype_of(kernel)].sums != "int32" or not steps or not set(steps) <= set(_STEPS):
        return None
    return f"typed_stepped_ep{code_of(steps)}_{output_of(kernel)}_vl{kernel['vl']}"


def stepped_words(kernel: MicroKernel) -> dict[str, object]:
    """Definitions for ``native/typed_stepped.h`` of a kernel that has such a function."""
    steps, symbol = steps_of(kernel), stepped_symbol(kernel)
    operand_index = {name: index for index, (name, _) in enumerate(operands_of(steps))}
    return {
        "STEPPED": symbol,
        "GIVEN(ONE)": " ".join(f"ONE({index})" for index in range(len(operand_index))),
        "STEPS": " ".join(_statements(steps, operand_index)),
        "PUT": f"ht_vl{kernel['vl']}_put_{output_of(kernel)}",
        "BYTES": DTYPES[output_of(kernel)].size,
    }


def _statements(steps: Sequence[str], places: dict[str, int]) -> list[str]:
    """A statement a step; a scale and the bias behind it are rounded once where the CPU has that, as in programs."""
    result: list[str] = []
    for index, step in enumerate(steps):
        reads = [f"g{places[name]}" for name, _ in operands_of((step,))]
        if step == "bias" and index > 0 and steps[index - 1] == "scale":
            result[-1] = f"value = madd(value, g{places['scale']}, {reads[0]});"
        else:
            result.append(f"value = {_STEPS[step].format(*reads)};")
    return result
