"""One line about an open pack, its ops and its models, for whoever looks at one in a notebook: what ``repr`` gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ENDS = 4  # inputs and outputs of a model that are written out


def described_pack(pack: Any) -> str:
    """``<Pack "z": 8 ops, model bert, cpu-zen4, 2 threads, unverified>``."""
    parts = [f"{len(pack.ops)} op{'s' * (len(pack.ops) != 1)}"]
    if pack.models:
        parts.append(f"model{'s' * (len(pack.models) > 1)} {', '.join(pack.models)}")
    parts += [pack.device, f"{pack.threads} thread{'s' * (pack.threads != 1)}"]
    parts += ["unverified"] * bool(pack.manifest.unverified) + ["closed"] * (not pack.is_open)
    return f'<{type(pack).__name__} "{pack.path}": {", ".join(parts)}>'


def described_op(value: Any) -> str:
    """``<Linear dense_n2304_k768>``: an op, or one that is bound."""
    return f"<{type(value).__name__} {value.name}>"


def described_model(model: Any) -> str:
    """``<Model bert: input_ids int64 (batch, seq) -> last float32 (batch, seq, 768)>``."""
    return f"<{type(model).__name__} {model.name}: {_ends(model.inputs)} -> {_ends(model.outputs)}>"


def described_end(end: Any) -> str:
    """``input_ids int64 (batch, seq)``; ``?`` is an extent that follows from others."""
    shape = ", ".join("?" if extent is None else str(extent) for extent in end.shape)
    return f"{end.name} {end.dtype.name} ({shape})"


def _ends(ends: Iterable[Any]) -> str:
    every = [described_end(end) for end in ends]
    more = [f"{len(every) - ENDS} more"] if len(every) > ENDS else []
    return ", ".join([*every[:ENDS], *more])
