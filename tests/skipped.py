"""What a run of the tests skipped, by name, for a later run of just that: once packages are there that were missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

OUTERMOST = pytest.StashKey[bool]()  # a run that no test started
_KEY = "haotuner/skipped"  # in pytest's cache


def note(config: pytest.Config, reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> None:
    """Keep the names of these tests, and of files that were skipped whole."""
    if config.pluginmanager.has_plugin("cacheprovider"):
        _cache(config).set(_KEY, sorted({report.nodeid for report in reports}))


def may_hold(config: pytest.Config, path: Path) -> bool:
    """Whether a file or folder may hold a test that was skipped."""
    return path.is_dir() or path.relative_to(config.rootpath).as_posix() in {_file(name) for name in _noted(config)}


def keep_asked(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but those that were skipped. UsageError where one of them is no longer there."""
    noted = _noted(config)
    selected = [item for item in items if item.nodeid in noted or _file(item.nodeid) in noted]
    files = {_file(item.nodeid) for item in items}
    gone = {name for name in noted if "::" in name and _file(name) in files} - {item.nodeid for item in selected}
    if gone:
        raise pytest.UsageError(f"skipped in the last run, not found in this one: {', '.join(sorted(gone))}; run all tests")
    config.hook.pytest_deselected(items=[item for item in items if item not in set(selected)])
    items[:] = selected


def _noted(config: pytest.Config) -> Sequence[str]:
    return _cache(config).get(_KEY, [])  # type: ignore[no-any-return]


def _file(name: str) -> str:
    return name.partition("::")[0]


def _cache(config: pytest.Config) -> pytest.Cache:
    cache = config.cache
    assert cache is not None
    return cache
