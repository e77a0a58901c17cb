"""The index of op kinds: an explicit tuple. A new kind is one file and one line here."""

from __future__ import annotations

from haotuner.ops.attention import ATTENTION
from haotuner.ops.batch_matmul import BATCH_MATMUL
from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.dense import DENSE
from haotuner.ops.grouped import GROUPED
from haotuner.ops.image_norms import IMAGE_NORMS
from haotuner.ops.kind import OpKind
from haotuner.ops.reductions import REDUCTION_KINDS, TRANSPOSE
from haotuner.ops.rows import ROW_KINDS
from haotuner.ops.windows import WINDOW_KINDS

_KINDS: tuple[OpKind, ...] = (
    DENSE,
    BATCH_MATMUL,
    ATTENTION,
    GROUPED,
    *CONVOLUTIONS,
    *ROW_KINDS,
    *IMAGE_NORMS,
    *REDUCTION_KINDS,
    TRANSPOSE,
    *WINDOW_KINDS,
)  # fmt: skip
KINDS: dict[str, OpKind] = {kind.name: kind for kind in _KINDS}
