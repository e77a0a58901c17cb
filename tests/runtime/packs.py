"""Small packs built without tuning: made-up plans over real kernels, through the real compiler, writer and runtime."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.cpu.pack_dense import Blocking
from haotuner.backends.cpu.pack_source import Entry, PackedAny, PackedOp, PackedPlan, pack_library
from haotuner.host.processor import cpu_name, missing_flags
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.pack.write import sealed, write_pack
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.run_folder import toolchain

LANES = {"x86-64-v4": 16, "x86-64-v3": 8, "x86-64-v2": 4}
LANES_HERE = sorted({lanes for level, lanes in LANES.items() if not missing_flags(level)})  # what this host executes
LIMIT = 40  # rows in every table; tuned range 2..40, so that both m = 1 and m > 40 are outside
SPLITS = ("serial", "n", "m")  # of the plans of a packed op, in turn, unless told otherwise


@dataclass(frozen=True)
class BuiltPack:
    """A pack and the tables it was made from: ``plans[op name][plan index]``."""

    path: Path
    ops: dict[str, PackedOp]
    level: str


def best_level() -> str:
    """The widest instruction set of this host that the fixtures have kernels for."""
    return next(level for level in LANES if not missing_flags(level))


def kernels_for(lanes: int, pw: int) -> list[MicroKernel]:
    """Tiles of 1, 2, 4 and 6 rows; one to three panels wide, so that no width divides all others."""
    family = CpuDense()
    shapes = [(1, 3), (2, 1), (4, 1), (6, 2)] if lanes == 16 else [(1, 3), (2, 2), (4, 1)]
    return [family.kernel(mr, panels * pw, pw, 2, lanes) for mr, panels in shapes]


def plan_for(kernels: Sequence[MicroKernel], threads: int, split: str, seed: int, **blocks: int) -> PackedPlan:
    """A table that covers every m exactly with up to three kernels, drawn at random from all such covers."""
    draw, rows = random.Random(seed), tuple(kernel["mr"] for kernel in kernels)
    entries: list[Entry] = []
    for m in range(1, LIMIT + 1):
        parts = draw.choice(_covers(rows, m))
        entries.append((parts, split if m > 1 else "serial"))
    return PackedPlan(threads=threads, entries=entries, **blocks)


@functools.cache
def _covers(rows: tuple[int, ...], m: int) -> list[tuple[tuple[int, int], ...]]:
    """Kernels, by their places, with numbers of tiles that are m rows together; ``rows``: of a tile of each kernel."""
    covers: list[tuple[tuple[int, int], ...]] = []

    def extend(parts: tuple[tuple[int, int], ...], left: int) -> None:
        if left == 0:
            covers.append(parts)
        elif len(parts) < 3:
            used = {kernel for kernel, _ in parts}
            for index, height in enumerate(rows):
                if index not in used:
                    for tiles in range(1, left // height + 1):
                        extend((*parts, (index, tiles)), left - tiles * height)

    extend((), m)
    return covers


def packed_op(name: str, lanes: int, pw: int, counts: Sequence[int] = (1, 2, 3), splits: Sequence[str] = SPLITS) -> PackedOp:
    """An op with one plan a thread count: serial, split by columns, split by rows (blocked); k in parts from 24 rows on."""
    op = Op.parse(name)
    kernels = [with_epilogue(kernel, op.epilogue) for kernel in kernels_for(lanes, pw)]
    panels = max(-(-op["n"] // k["nr"]) * (k["nr"] // pw) for k in kernels)
    setting = Blocking(n=op["n"], k=op["k"], pw=pw, panels=panels, col_block=2 * pw, row_block=8,
                      k_block=7, k_block_from=24, k_block_rows=4)  # fmt: skip
    plans = [
        plan_for(kernels, count, splits[i % 3], i, **({"row_block": 8, "row_block_from": 16} if i == 2 else {}))
        for i, count in enumerate(counts)
    ]
    return PackedOp(op=op, setting=setting, first_m=2, last_m=LIMIT, kernels=kernels, plans=plans)


def document(ops: Sequence[PackedAny], arch: str) -> dict[str, Any]:
    """The manifest's content, as `haotuner tune` writes it."""
    return {
        "haotuner": "0",
        "device": {"id": "test-host", "arch": arch, "kind": "cpu", "name": cpu_name()},
        "ops": [op.entry({}) for op in ops],
    }


def make_pack(out: Path, ops: Sequence[PackedOp], arch: str) -> BuiltPack:
    """Build the library and publish the pack at ``out``."""
    library = out.with_suffix(".so")
    pack_library(ops, arch, toolchain(), library)
    write_pack(out, library, document(ops, arch), lambda _: None)
    library.unlink()
    return BuiltPack(out, {op.name: op for op in ops}, arch)


def rewrite(pack: Path, **changes: Any) -> None:
    """Change the manifest of a pack, and its hash with it: whoever writes to harm does so."""
    document = json.loads((pack / "manifest.json").read_text())
    put_manifest(pack, json.dumps(document | changes).encode())


def put_manifest(pack: Path, raw: bytes) -> None:
    """Write a manifest with its hash."""
    for name, data in sealed(raw).items():
        (pack / name).write_bytes(data)


def reference(x: Any, weight: Any) -> Any:
    """x times weight^T in float64."""
    return np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T


def assert_right(y: Any, x: Any, weight: Any) -> None:
    """Within the rounding of a length-k sum in any order (Higham 2002, section 4.2; factor 4 as in pack/verify)."""
    size = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(weight, np.float64)).T
    allowed = 4 * np.finfo(np.float32).eps * np.sqrt(np.shape(x)[-1]) * size
    assert (np.abs(np.asarray(y, np.float64) - reference(x, weight)) <= allowed).all()
