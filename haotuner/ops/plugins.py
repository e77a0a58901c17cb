"""Op kinds of installed packages, by the entry points ``haotuner.ops``: each is loaded when its name is first used.

    [project.entry-points."haotuner.ops"]
    row_sum = "my_package.ops:ROW_SUM"

An entry point has the kind's name and leads to an ``OpKind``. One that cannot be loaded is an error of its own name alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from haotuner.errors import UsageError
from haotuner.ops.kind import OpKind

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
