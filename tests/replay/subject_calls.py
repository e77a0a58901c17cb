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
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.isa import parse_cpuinfo
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

ISAS = ("sse", "avx2", "avx512")
MOST_OF = {"b": 3, "c": 8}  # of axes of drawn shapes
MOST = 20  # of all others: few cells, so that the tables of a pack compile fast
TOGETHER = 5  # ops of a pack


def call_bits(ops: Sequence[str], shapes: int, isas: Sequence[str] = ISAS) -> dict[str, dict[str, str]]:
    """Digests of the results of served ops, by op and then by what bits depend on: instruction set, extensions, compilers.

    The packs are made without measuring; shapes and operands are drawn, the same on every host.
    """
    found: dict[str, dict[str, str]] = {op: {} for op in ops}
    compilers = Toolchain.find().words()
    versions = [re.sub(r".*?([0-9]+)\.[0-9.]+.*", r"\1", compilers["compiler"]), compilers["apache-tvm"]]
    flags = parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")).flags
    more = " ".join(sorted({dot.flag for dot in DOTS.values()} & set(flags)))
    for isa in isas:
        try:
            find_device(f"cpu:{isa}", measure=False)
        except HaotunerError:
            continue
        host = f"{isa}{f' with {more}' if more else ''}, compiler {versions[0]}, TVM {versions[1]}"
        for first in range(0, len(ops), TOGETHER):
            for text, bits in _bits_of_pack(ops[first : first + TOGETHER], isa, shapes).items():
                found[text][host] = bits
    return found


def _bits_of_pack(ops: Sequence[str], isa: str, shapes: int) -> dict[str, str]:
    parsed = {text: Op.parse(text) for text in ops}
    ranges = dict.fromkeys(
        "; ".join(f"{axis}=1..{MOST_OF.get(axis, MOST)}" for axis in op.dynamic) for op in parsed.values()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pack"
        request = Request(ops=tuple(parsed.values()), arrivals=arrivals_of(*ranges), device=f"cpu:{isa}", threads=(1,),
                          out=path, zero_measure=True, environment=dict(os.environ))  # fmt: skip
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
            one.name: np.zeros(meaning.operand_shape(one, shape), numerics.numpy_dtype(meaning.dtype_of(one)))
            for one in meaning.meaning.written
        }
        into = tuple(outs[one.name] for one in served.in_file_order)
        try:
            _call(pack, served, inputs)(inputs, into if len(into) > 1 else into[0])
        except (HaotunerError, ValueError) as error:  # a shape that the op does not have
            digests.append(type(error).__name__)
            continue
        digests.append(hashlib.sha256(b"".join(out.tobytes() for out in outs.values())).hexdigest()[:12])
    return " ".join(digests)
