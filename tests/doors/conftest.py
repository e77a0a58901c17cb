"""One small tuned pack for the tests of verbs that look at a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.command import TINY, haotuner
from tests.run_folder import cache_folder


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_folder()


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, Any]:
    """Folder with ``pack`` and its records, and the JSON that `haotuner tune` printed."""
    folder = tmp_path_factory.mktemp("tuned")
    answer = haotuner("tune", *TINY, "--budget", "3s", "--json", cache=cache, cwd=folder)
    assert answer.code == 0, answer.err
    return folder, answer.json()
