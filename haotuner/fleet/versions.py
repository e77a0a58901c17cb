"""Versions of a node: haotuner, Python and what compiles, compared before work goes there."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from haotuner import __version__
from haotuner.errors import EnvironmentMissing

LABEL = "haotuner"  # prefix of a node's labels
HAOTUNER, PYTHON = f"{LABEL}-version", f"{LABEL}-python"


def labels() -> dict[str, str]:
    """Versions of this process as labels of a node, which need no work on the node to be read."""
    return {HAOTUNER: __version__, PYTHON: platform.python_version()}


def check_labels(node: str, seen: Mapping[str, str]) -> None:
    """EnvironmentMissing for a node of another haotuner or Python than this process."""
    own = labels()
    wrong = [f"{name.removeprefix(LABEL + '-')} {seen.get(name) or 'unknown'}, here {own[name]}" for name in own
             if seen.get(name) != own[name]]  # fmt: skip
    if wrong:
        raise EnvironmentMissing(
            f"node {node} has haotuner of another version or another Python ({'; '.join(wrong)}); install the same on both "
            "and run `haotuner fleet join` there again"
        )


def check_toolchain(node: str, seen: Mapping[str, str], own: Mapping[str, str]) -> None:
    """EnvironmentMissing for a node that compiles with other versions: its kernels would be other ones."""
    wrong = [f"{name} {seen.get(name, 'missing')}, here {own.get(name, 'missing')}" for name in sorted({*seen, *own})
             if seen.get(name) != own.get(name)]  # fmt: skip
    if wrong:
        raise EnvironmentMissing(
            f"node {node} compiles with other versions ({'; '.join(wrong)}); install the same on both and run "
            "`haotuner fleet join` there again"
        )
