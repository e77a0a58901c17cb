"""What `haotuner explain` says of a generated kernel: the decisions of its program, and the bytes that it moves by level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.index import family_named
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.shape import Shape


def program_document(kernel: str, op: Op, shape: Shape, device: Device) -> dict[str, Any] | None:
    """Decisions and bytes of a kernel's program for a whole call on one thread; None of a kernel that is not generated."""
    found = MicroKernel.parse(kernel)
    try:
        family = family_named(found.family)
    except KeyError:  # a backend may have its own families
        return None
    if not isinstance(family, CpuGenerated):
        return None
    return {
        "decisions": family.decisions(found),
        "bytes": family.bytes_by_level(found, op.extents(shape), device),
    }


def print_program(document: Mapping[str, Any]) -> None:
    """The same for people."""
    for kind, words in document["decisions"].items():
        say(f"{kind}: {words}")
    rows = [(level, f"{count:,}") for level, count in document["bytes"].items()]
    say(columns([("moved, one thread", "bytes"), *rows]))
