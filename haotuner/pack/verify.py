"""Verify a pack: files, schema, host, then numbers against float64 on shapes where plans change. Base install only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.pack.levels import level_hashes
from haotuner.pack.manifest import MANIFEST, PackOp, parse, read_bytes, read_level
from haotuner.runtime.host import missing_flags, usable_cores
from haotuner.runtime.library import check_library

EPS = float(np.finfo(np.float32).eps)
GUARD = 16  # floats around every output row that must stay as they were
SENTINEL = np.float32(-7.25e30)
RANDOM_SHAPES = 6  # beside the boundaries, drawn with a fixed seed
LARGEST_FLOPS = 4e9  # of one check in float64: about a second; larger m are checked through smaller ones of the same plan


def verify(path: Path, *, seed: int = 0, most_flops: float = LARGEST_FLOPS) -> list[str]:
    """Every problem found, in words; empty when the pack is sound and right.

    Of a pack with several levels, the files of all are checked, and the numbers of those that this CPU can run.
    ``most_flops``: of one check; calls of more are not made.
    """
    try:
        levels = level_hashes(parse(path / MANIFEST, read_bytes(path)))
        if levels is None:
            return _verify_plain(path, seed, most_flops)
        problems = []
        for level in levels:
            manifest = read_level(path, level, levels)
            check_library(path, manifest)
            if not missing_flags(level):
                problems += [f"{level}: {problem}" for problem in _verify_plain(path / level, seed, most_flops)]
    except HaotunerError as error:
        return [str(error)]
    except ValueError as error:
        return [f"{path / MANIFEST}: {error}"]
    return problems


def _verify_plain(path: Path, seed: int, most_flops: float) -> list[str]:
    from haotuner.runtime.pack import Pack

    problems: list[str] = []
    try:
        with Pack(path) as pack:
            manifest = pack.manifest
            counts = sorted({t for op in pack.manifest.ops for t in op.threads} | {1, usable_cores()})
    except HaotunerError as error:
        return [str(error)]
    for threads in counts:
        with Pack(path, threads) as pack:
            for op in pack.manifest.ops:
                problems += _check_op(pack, op, threads, np.random.default_rng(seed), most_flops)
    if manifest.batch_invariant:
        for op in manifest.ops:
            problems += _check_bits(path, op, counts, np.random.default_rng(seed), most_flops)
    return problems


def _shapes(op: PackOp, rng: np.random.Generator, most_flops: float) -> list[int]:
    most = max(max(op.tile_rows) + 1, int(min(op.last_m + 2 * max(op.tile_rows), most_flops / (2 * op.n * op.k))))
    edges = {0, 1, 2, 3, op.first_m, min(op.last_m, most), min(op.last_m + 1, most), most}
    edges |= {mr + d for mr in op.tile_rows for d in (-1, 0, 1)}
    edges |= {int(m) for m in np.exp(rng.uniform(0, np.log(max(most, 2)), RANDOM_SHAPES))}
    return sorted(m for m in edges if 0 <= m <= most)


def _check_bits(path: Path, op: PackOp, counts: list[int], rng: np.random.Generator, most_flops: float) -> list[str]:
    """The promise of a batch-invariant pack: rows of a large batch are the bits of a small one, from either end."""
    from haotuner.runtime.pack import Pack

    weight = rng.standard_normal((op.n, op.k), dtype=np.float32)
    shapes = [m for m in _shapes(op, rng, most_flops) if m > 0]
    x = rng.standard_normal((max(shapes), op.k), dtype=np.float32)
    whole = None
    problems = []
    for threads in counts:
        with Pack(path, threads) as pack:
            linear = pack.op(op.name).bind(weight.T.copy() if op.weight == "kn" else weight)
            whole = linear(x) if whole is None else whole
            problems += [
                f"{op.name} m={m} threads={threads}: not the bits of a batch of {len(x)}, which the pack promises"
                for m in shapes
                if not (np.array_equal(linear(x[:m]), whole[:m]) and np.array_equal(linear(x[-m:]), whole[-m:]))
            ]
    return problems


def _check_op(  # type: ignore[no-untyped-def]
    pack, op: PackOp, threads: int, rng: np.random.Generator, most_flops: float
) -> list[str]:
    weight = rng.standard_normal((op.n, op.k), dtype=np.float32)
    linear = pack.op(op.name).bind(weight.T.copy() if op.weight == "kn" else weight)
    wide, size = weight.astype(np.float64).T, np.abs(weight).astype(np.float64).T
    problems = []
    for m in _shapes(op, rng, most_flops):
        x = np.full((m, op.k + 3), np.nan, np.float32)  # rows further apart than k, NaN between them
        x[:, : op.k] = rng.standard_normal((m, op.k), dtype=np.float32)
        x = x[:, : op.k]
        y = np.full((m + 2, op.n + 2 * GUARD), SENTINEL, np.float32)
        inner = y[1 : m + 1, GUARD : GUARD + op.n]
        linear(x, out=inner)
        want = x.astype(np.float64) @ wide
        # Rounding of a length-k sum grows like sqrt(k) (Higham 2002, section 4.2); 4 covers the reordering.
        allowed = 4 * EPS * np.sqrt(op.k) * (np.abs(x).astype(np.float64) @ size)
        wrong = ~(np.abs(inner - want) <= allowed)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            problems.append(f"{op.name} m={m} threads={threads}: {int(wrong.sum())} wrong results, first y{list(at)} is "
                            f"{inner[at]}, want {want[at]}")  # fmt: skip
        inner[:] = SENTINEL
        if not (y == SENTINEL).all():
            problems.append(f"{op.name} m={m} threads={threads}: wrote outside the output")
    return problems
