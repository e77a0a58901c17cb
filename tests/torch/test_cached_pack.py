"""Packs of compiled models in the cache folder: by what decides them, tuned once however many processes need them."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from haotuner.errors import EnvironmentMissing, HaotunerError, UsageError  # noqa: E402
from haotuner.pack.folder import MANIFEST  # noqa: E402
from haotuner.spec.shape import Shape  # noqa: E402
from haotuner.torch import cached_pack  # noqa: E402
from haotuner.torch.cached_pack import pack_path, tuned_pack, tuning_s  # noqa: E402
from tests.torch.torch_packs import chain_pack  # noqa: E402

TRACES = {"dense:n=24,k=16": [Shape.of({"m": 1}), Shape.of({"m": 64})]}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return chain_pack(tmp_path_factory.mktemp("cached"))


@pytest.fixture
def tunings(monkeypatch, path) -> list[Path]:
    """Folders that were tuned, by a copy of a pack."""
    out: list[Path] = []

    def tune(target: Path, *_: Any) -> None:
        out.append(target)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(path, target)

    monkeypatch.setattr(cached_pack, "_tune", tune)
    return out


def ignore(_: str) -> None:
    """Nothing is printed."""


def test_a_pack_is_tuned_once_for_many(tmp_path, tunings):
    environment, results = {"XDG_CACHE_HOME": str(tmp_path)}, []
    threads = [
        threading.Thread(target=lambda: results.append(tuned_pack(TRACES, 1, 0.0, environment, ignore))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tunings) == 1 and results == tunings * 6


def test_a_damaged_pack_is_tuned_again(tmp_path, tunings):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    target = tuned_pack(TRACES, 1, 0.0, environment, ignore)
    (target / MANIFEST).write_text("{")
    assert tuned_pack(TRACES, 1, 0.0, environment, ignore) == target and len(tunings) == 2


def test_whatever_decides_a_pack_is_in_its_name(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    others = [
        (TRACES, 1, 0.0),
        (TRACES, 2, 0.0),
        (TRACES, 1, 15.0),
        ({"dense:n=24,k=16": [Shape.of({"m": 1})]}, 1, 0.0),
        ({"dense:n=24,k=17": TRACES["dense:n=24,k=16"]}, 1, 0.0),
    ]
    assert len({pack_path(*each, environment) for each in others}) == len(others)


def test_without_a_folder_for_packs_the_error_says_what_to_do(tmp_path, tunings):
    with pytest.raises(EnvironmentMissing, match="XDG_CACHE_HOME"):
        tuned_pack(TRACES, 1, 0.0, {}, ignore)
    (tmp_path / "haotuner").write_text("a file in the way")
    with pytest.raises(EnvironmentMissing, match="XDG_CACHE_HOME"):
        tuned_pack(TRACES, 1, 0.0, {"XDG_CACHE_HOME": str(tmp_path)}, ignore)


def test_a_failure_of_tuning_ends_in_its_last_words(tmp_path, monkeypatch):
    import os

    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(HaotunerError, match="could not be tuned: haotuner: .*no_such_kind"):
        tuned_pack({"no_such_kind:n=4": TRACES["dense:n=24,k=16"]}, 1, 0.0, environment, ignore)


@pytest.mark.parametrize("tune, seconds", [(None, None), ("zero", 0.0), ("15s", 15.0), ("2m", 120.0)])
def test_times_to_measure_are_read(tune, seconds):
    assert tuning_s(tune) == seconds


@pytest.mark.parametrize("tune", ["", "0s", "15", "soon", 15, True])
def test_what_is_no_time_is_refused(tune):
    with pytest.raises(UsageError, match="15s"):
        tuning_s(tune)
