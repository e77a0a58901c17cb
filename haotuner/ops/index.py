"""The index of op kinds: an explicit tuple, groups that files bring, and kinds of installed packages.

Op kinds of installed packages, by the entry points ``haotuner.ops``: each is loaded when its name is first used.

    [project.entry-points."haotuner.ops"]
    row_sum = "my_package.ops:ROW_SUM"

An entry point has the kind's name and leads to an ``OpKind``. One that cannot be loaded is an error of its own name alone.

A new built-in kind is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from haotuner.errors import UsageError
from haotuner.ops.attention import ATTENTION
from haotuner.ops.convolution import CONVOLUTIONS
from haotuner.ops.groups import GROUPS
from haotuner.ops.kind import OpKind
from haotuner.ops.products import BATCH_MATMUL, DENSE, GROUPED
from haotuner.ops.rows import IMAGE_NORMS, REDUCTION_KINDS, ROW_KINDS, TRANSPOSE
from haotuner.ops.windows import WINDOW_KINDS

GROUP = "haotuner.ops"


@cache
def installed() -> Mapping[str, EntryPoint]:
    """Entry points by the names of the kinds that they lead to; nothing is loaded."""
    return MappingProxyType({point.name: point for point in entry_points(group=GROUP)})


@cache
def loaded(name: str, built_in: frozenset[str]) -> OpKind | None:
    """The kind of an installed package; None where none has this name.

    Raises:
        UsageError: the package cannot be imported, brings no ``OpKind``, or its name would be read as a built-in kind's.
    """
    result = installed().get(name)
    if result is None:
        return None
    where = f"op kind {name!r}: {result.value} of the installed package {result.dist.name if result.dist else '?'}"
    shadowed = next((item for item in sorted(built_in) if f"{name}_".startswith(f"{item}_")), "")
    if shadowed:
        raise UsageError(f"{where}: names that begin with {shadowed!r} mean that built-in kind; give the kind another name")
    try:
        kind = result.load()
    except Exception as error:  # whatever a package of others raises while it is imported
        raise UsageError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}; mend that package, or uninstall it"
        ) from error
    if not isinstance(kind, OpKind):
        raise UsageError(f"{where} is a {type(kind).__name__}; an entry point of {GROUP!r} leads to an OpKind")
    if kind.name != name:
        raise UsageError(f"{where} is called {kind.name!r}; the entry point must have the kind's name")
    return kind


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
    if not text:
        return ""
    # Installed kinds come last: looking for them reads the metadata of every package, which costs a load milliseconds.
    return _longest_prefix(text, KINDS) or _longest_prefix(text, GROUPS) or _longest_prefix(text, installed())


def _longest_prefix(text: str, names: Iterable[str]) -> str:
    return max((name for name in names if f"{text}_".startswith(f"{name}_")), key=len, default="")


def kind_names() -> list[str]:
    """Names of all kinds but groups, sorted."""
    return sorted({*KINDS, *installed()})
