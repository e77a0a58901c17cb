"""Bits of served calls: with ``subject.py`` and ``subject_records.py`` all of the replay that imports haotuner."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from haotuner.backends.toolchain import Toolchain
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.cpu import cpu_info
from haotuner.hw_profiles.isa import ISAS, CpuInfo, Isa, has_tiles
from haotuner.hw_profiles.topology import Host
from haotuner.microkernels.cpu.typed_source import DOTS
from haotuner.pack.op import PackOp
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import arrivals_of
from haotuner.tuning import session
from haotuner.tuning.request import Request
from haotuner.verify.pack_check import _call

MOST_OF = {"b": 3, "c": 8}  # of axes of drawn shapes
MOST = 20  # of all others: few cells, so that the tables of a pack compile fast
OPS_OF_PACK = 5
WIDEST = max(isa.wave_width for isa in ISAS)


def call_bits(ops: Sequence[str], shapes: int, isas: Sequence[Isa] = ISAS) -> dict[str, dict[str, str]]:
    """Digests of the results of served ops, by op and then by what bits depend on: instruction set, extensions, compilers.

    The packs are made without measuring; shapes and operands are drawn, the same on every host.
    """
    digests: dict[str, dict[str, str]] = {op: {} for op in ops}
    compilers = Toolchain.find().words()
    versions = [re.sub(r".*?([0-9]+)\.[0-9.]+.*", r"\1", compilers["compiler"]), compilers["apache-tvm"]]
    info = cpu_info(Host.here())
    with tempfile.TemporaryDirectory() as cache:  # the runtime is compiled once, not once a pack
        for isa in (isa for isa in isas if isa in info.isas()):
            for first in range(0, len(ops), OPS_OF_PACK):
                for op, bits in _bits_of_pack(ops[first : first + OPS_OF_PACK], isa.name, shapes, Path(cache)).items():
                    extensions = " ".join(_extensions(Op.parse(op), isa, info))
                    name = f"{isa.name} with {extensions}" if extensions else isa.name
                    host = f"{name}, compiler {versions[0]}, TVM {versions[1]}"
                    digests[op][host] = bits
    return digests


def _extensions(op: Op, isa: Isa, info: CpuInfo) -> list[str]:
    """Flags beyond its instruction set that an op's kernels may use on this CPU, and that change the order of sums."""
    if isa.wave_width == WIDEST and has_tiles(info):
        return sorted(flag for flag in info.flags if flag.startswith("amx_")) + _dots(isa, info)
    return [] if op.dtype == "fp32" and "bf16" not in op.name else _dots(isa, info)


def _dots(isa: Isa, info: CpuInfo) -> list[str]:
    return sorted(dot.flag for (_, lanes), dot in DOTS.items() if lanes == isa.wave_width and dot.flag in info.flags)


def _bits_of_pack(ops: Sequence[str], isa: str, shapes: int, cache: Path) -> dict[str, str]:
    parsed = {text: Op.parse(text) for text in ops}
    ranges = dict.fromkeys(
        "; ".join(f"{axis}=1..{MOST_OF.get(axis, MOST)}" for axis in op.dynamic) for op in parsed.values()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pack"
        request = Request(ops=tuple(parsed.values()), arrivals=arrivals_of(*ranges), device=f"cpu:{isa}", threads=(1,),
                          out=path, zero_measure=True, cache=cache, environment=dict(os.environ))  # fmt: skip
        session.produce(request)
        with Pack(path, 1) as pack:
            served = {op.name: op for op in pack.manifest.ops}
            return {text: _bits(pack, served[op.name], shapes) for text, op in parsed.items()}


def _bits(pack: Pack, served: PackOp, shapes: int) -> str:
    meaning, draw = Op.parse(served.name), np.random.default_rng(0)
    digests = []
    for number in range(shapes):
        shape = Shape.of({
            axis.name: 1 + ((7, 0, 15, 40, 22)[(number + at) % 5] + 8) % MOST_OF.get(axis.name, MOST)
            for at, axis in enumerate(served.dynamic)
        })  # fmt: skip
        inputs = numerics.draw(meaning, shape, draw)
        outs = {
            operand.name: np.zeros(meaning.operand_shape(operand, shape), numerics.numpy_dtype(meaning.dtype_of(operand)))
            for operand in meaning.meaning.written
        }
        into = tuple(outs[operand.name] for operand in served.in_file_order)
        try:
            _call(pack, served, inputs)(inputs, into if len(into) > 1 else into[0])
        except (HaotunerError, ValueError) as error:  # a shape that the op does not have
            digests.append(type(error).__name__)
            continue
        digests.append(hashlib.sha256(b"".join(out.tobytes() for out in outs.values())).hexdigest()[:12])
    return " ".join(digests)
