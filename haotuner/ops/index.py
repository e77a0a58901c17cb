"""The index of op kinds: an explicit tuple, groups that files bring, and kinds of installed packages.

A new built-in kind is one file and one line here.
"""

from __future__ import annotations

from haotuner.ops.attention import ATTENTION
from haotuner.ops.batch_matmul import BATCH_MATMUL
from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.dense import DENSE
from haotuner.ops.grouped import GROUPED
from haotuner.ops.groups import GROUPS
from haotuner.ops.image_norms import IMAGE_NORMS
from haotuner.ops.kind import OpKind
from haotuner.ops.plugins import installed, loaded
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
_BUILT_IN = frozenset(KINDS)


def kind_named(name: str) -> OpKind | None:
    """The kind of that name: built in, of a group that a file brought, or of an installed package; else None.

    Raises:
        UsageError: an installed package has the name, and cannot be loaded.
    """
    return KINDS.get(name) or GROUPS.get(name) or loaded(name, _BUILT_IN)


def kind_in(text: str) -> str:
    """The name of the kind that an op's name begins with, the longest one; empty where there is none."""
    for names in (KINDS, GROUPS, installed()) if text else ():
        result = max((name for name in names if f"{text}_".startswith(f"{name}_")), key=len, default="")
        if result:
            return result
    return ""


def kind_names() -> list[str]:
    """Names of all kinds but groups, sorted."""
    return sorted({*KINDS, *installed()})
