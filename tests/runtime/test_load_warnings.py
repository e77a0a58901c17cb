"""What `load` chooses and says by itself: a tuned thread count, and that a pack was not measured or is of another CPU."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

import haotuner
from haotuner.runtime import pack as pack_module
from tests.runtime.conftest import DENSE, rows
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import packed_op, rewrite


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_pack(tmp_path_factory.mktemp("said") / "pack", [packed_op(DENSE, 4, 4, (1, 3, 8))])


@pytest.mark.parametrize("cores, chosen", [(1, 1), (2, 1), (3, 3), (7, 3), (8, 8), (64, 8)])
def test_a_tuned_thread_count_is_the_default_and_no_fallback(
    path: Path, cores: int, chosen: int, weight: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_module, "usable_cores", lambda: cores)
    with haotuner.load(path) as pack:
        assert pack.threads == chosen
        before = pack.stats()[DENSE]["fallbacks"]
        pack.op(DENSE).bind(weight)(rows(3))
        assert pack.stats()[DENSE]["fallbacks"] == before
    with haotuner.load(path, threads=2) as pack:  # what is asked for is obeyed
        assert pack.threads == 2


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"unverified": True}, "nothing was measured for it"),
        ({"device": {"id": "a", "kind": "cpu", "name": "Some CPU", "arch": "x86-64"}}, "made for Some CPU, this host has"),
    ],
)
def test_a_pack_that_may_be_slow_here_says_so(path: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    shutil.copytree(path, tmp_path / "pack")
    rewrite(tmp_path / "pack", **changes)
    with pytest.warns(UserWarning, match=words) as caught_warnings:
        haotuner.load(tmp_path / "pack").close()
    assert len(caught_warnings) == 1 and caught_warnings[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        haotuner.load(path).close()
