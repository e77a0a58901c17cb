"""One small tuned pack for the tests of verbs that look at a pack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TINY, haotuner
from tests.run_folder import cache_folder, once


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_folder()


@pytest.fixture(scope="session")
def tuned(cache: Path) -> tuple[Path, Any]:
    """Folder with ``pack`` and its records, and the JSON that `haotuner tune` printed: all processes of a run read it."""
    root = once("tuned", lambda folder: _tune(folder, cache))
    return root / "here", json.loads((root / "said.json").read_text())


def _tune(folder: Path, cache: Path) -> None:
    (folder / "here").mkdir(exist_ok=True)
    answer = haotuner("tune", *TINY, "--budget", "3s", "--json", cache=cache, cwd=folder / "here")
    assert answer.code == 0, answer.err
    (folder / "said.json").write_text(answer.out)
