"""The index of op kinds: an explicit tuple. A new kind is one file and one line here."""

from __future__ import annotations

from haotuner.ops.batch_matmul import BATCH_MATMUL
from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.dense import DENSE
from haotuner.ops.kind import OpKind

_KINDS: tuple[OpKind, ...] = (
    DENSE,
    BATCH_MATMUL,
    *CONVOLUTIONS,
)  # fmt: skip
KINDS: dict[str, OpKind] = {kind.name: kind for kind in _KINDS}
