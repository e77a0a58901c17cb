"""The index of op kinds: an explicit tuple. A new kind is one file and one line here."""

from __future__ import annotations

from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.dense import DENSE
from haotuner.ops.kind import OpKind

_KINDS: tuple[OpKind, ...] = (
    DENSE,
    *CONVOLUTIONS,
)  # fmt: skip
KINDS: dict[str, OpKind] = {kind.name: kind for kind in _KINDS}
