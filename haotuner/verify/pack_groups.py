"""Groups that a pack holds: read from it; ``python -m haotuner.verify.pack_groups verify DIR`` checks it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from haotuner.errors import HaotunerError
from haotuner.graph.group import learned
from haotuner.pack.__main__ import main
from haotuner.pack.manifest import read_level, read_levels, read_manifest
from haotuner.pack.op import PackOp
from haotuner.spec.op import Op


def meaning_of(entry: PackOp) -> Op:
    """Op that an entry of a pack computes; of a group, what its definition says. UsageError for one that is none."""
    if entry.group:
        learned(entry.group)
    return entry.op


def learn_from(path: Path) -> None:
    """Know the groups of a pack, of all of its levels. What cannot be read is left to whoever checks the pack."""
    with suppress(HaotunerError):
        levels = read_levels(path)
        manifests = [read_manifest(path)] if levels is None else [read_level(path, level, levels) for level in levels]
        for manifest in manifests:
            for op in manifest.ops:
                if op.group:
                    learned(op.group)


if __name__ == "__main__":
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # as `haotuner.pack` does
    learn_from(Path(sys.argv[2]))
    sys.exit(main(sys.argv[1:]))
