"""Text of `haotuner explain` on a generated kernel: the decisions of its program, and the bytes that it moves by level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.codegen.space import SLICES
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.index import family_named
from haotuner.spec.composition import SERIAL
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import FOLD_LEAST
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


def program_document(
    kernel: str, op: Op, shape: Shape, device: Device, share: str = SERIAL, threads: int = 1
) -> dict[str, Any] | None:
    """Decisions and bytes of a kernel's program for a whole call; None of a kernel that is not generated.

    ``share``: what ``threads`` share. Bytes are one thread's, or all parts' where threads share a folded axis.
    """
    parsed = MicroKernel.parse(kernel)
    try:
        family = family_named(parsed.family)
    except KeyError:  # a backend may have its own families
        return None
    if not isinstance(family, CpuGenerated):
        return None
    stages = family.stages(parsed)
    parts = stages.parts if stages is not None else SLICES * threads if share in family.joins(parsed) else 1
    return {
        "decisions": family.decisions(parsed),
        "parts": parts,
        "bytes": family.bytes_by_level(parsed, op.extents(shape), device, parts),
    }


def share_of_call(kernel: str, op: Op, shape: Shape, share: str, threads: int) -> str:
    """Axis that threads share in a call: a cell's way, or the terms of the only row, as the runtime does (``sliced.c``)."""
    parsed = MicroKernel.parse(kernel)
    try:
        family = family_named(parsed.family)
    except KeyError:
        return share
    if not isinstance(family, CpuGenerated) or threads < 2 or share == SERIAL:
        return share
    extents, tile, joins = op.extents(shape), family.tile(parsed), family.joins(parsed)
    if share in joins or extents[share] > tile.extent.get(share, 1):
        return share
    return next((axis for axis in reversed(list(op.meaning.axes)) if axis in joins and extents[axis] >= FOLD_LEAST), share)


def print_program(document: Mapping[str, Any]) -> None:
    """Printed form, for people."""
    for kind, words in document["decisions"].items():
        say(f"{kind}: {words}")
    rows = [(level, f"{count:,}") for level, count in document["bytes"].items()]
    of = "one thread" if document["parts"] == 1 else f"{document['parts']} parts of the folds"
    say(columns([(f"moved, {of}", "bytes"), *rows]))
