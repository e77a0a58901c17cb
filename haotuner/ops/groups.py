"""Kinds that a file brings: groups of primitives, known by name in this process once their definition was read.

A name ends with a hash of the definition, so one name means one thing wherever it was read, as an imported module does. Each
process reads definitions anew: a tuner from the user's file, its children from what they are told, a server from its pack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from haotuner.ops.kind import OpKind

LONGEST = 1 << 20  # characters of a definition
PREFIX = "group"

_kinds: dict[str, OpKind] = {}
_definitions: dict[str, str] = {}
GROUPS: Mapping[str, OpKind] = MappingProxyType(_kinds)  # by name


def digest_of(definition: str) -> str:
    """Digest at the end of a kind's name."""
    return hashlib.sha256(definition.encode()).hexdigest()[:8]


def learn(kind: OpKind, definition: str) -> OpKind:
    """Know a kind by its name from here on; the one that is known already where it is. ValueError for another's name."""
    if not kind.name.startswith(f"{PREFIX}_") or not kind.name.endswith(f"_{digest_of(definition)}"):
        raise ValueError(f"kind {kind.name!r}: the name of a group ends with the hash of its definition")
    _definitions.setdefault(kind.name, definition)
    return _kinds.setdefault(kind.name, kind)


def definition_of(name: str) -> str:
    """The definition of a kind; empty for one that no file brought."""
    return _definitions.get(name, "")


def definitions() -> tuple[str, ...]:
    """All that are known, for a child process to be told."""
    return tuple(_definitions.values())
