"""Columns of saved models: which a model uses, in which version, and whether this haotuner still computes them so.

A model is usable as long as the columns it uses are computed by the same formulas, whatever else is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from haotuner.cost.features import FEATURES, FEATURES_VERSION, RING_FEATURES

_VERSIONS = {feature.name: feature.version for feature in (*FEATURES, *RING_FEATURES)}


def versions(names: Iterable[str]) -> dict[str, int]:
    """Version of each of these columns as it is computed here."""
    return {name: _VERSIONS[name] for name in names}


def recorded_versions(facts: Mapping[str, Any]) -> dict[str, int]:
    """Version by name of the columns that a model uses, from its header or from the provenance beside it.

    Before columns had versions of their own a header listed all columns and one version; every column of
    ``FEATURES_VERSION`` is what is now its version 1. A forest uses those that its settings name.
    """
    if "columns" in facts:
        return dict(facts["columns"])
    if facts["features_version"] != FEATURES_VERSION:
        return {f"features of version {facts['features_version']}": 0}
    state = facts.get("state")
    settings = state.get("settings") if isinstance(state, Mapping) else None
    used = settings.get("columns") if isinstance(settings, Mapping) else None
    listed = facts.get("features", [])
    if isinstance(used, list) and set(map(str, used)) <= set(listed):
        listed = [name for name in listed if name in used or name == "expected_log"]
    return dict.fromkeys(listed, 1)


def why_outdated(columns: Mapping[str, int]) -> str:
    """Reason why a model of these columns cannot be used, to follow its name in a sentence; empty if there is none."""
    gone = sorted(name for name in columns if name not in _VERSIONS)
    other = sorted(name for name, version in columns.items() if version != _VERSIONS.get(name, version))
    parts = [f"that are not computed any more ({', '.join(gone[:8])})"] if gone else []
    parts += [f"that are computed differently now ({', '.join(other[:8])})"] if other else []
    return f"was trained on columns {' and '.join(parts)}" if parts else ""
