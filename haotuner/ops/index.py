"""The index of op kinds: an explicit tuple. A new kind is one file and one line here."""

from __future__ import annotations

from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.dense import DENSE
from haotuner.ops.grouped import GROUPED
from haotuner.ops.kind import OpKind
from haotuner.ops.reductions import REDUCTION_KINDS, TRANSPOSE
from haotuner.ops.rows import ROW_KINDS

_KINDS: tuple[OpKind, ...] = (
    DENSE,
    GROUPED,
    *CONVOLUTIONS,
    *ROW_KINDS,
    *REDUCTION_KINDS,
    TRANSPOSE,
)  # fmt: skip
KINDS: dict[str, OpKind] = {kind.name: kind for kind in _KINDS}
