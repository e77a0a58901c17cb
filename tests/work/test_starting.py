"""Where tuning starts: the nearest shipped model, a named one, or cold."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haotuner import starting
from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.started import TREE_ROWS, Started
from haotuner.errors import UsageError
from haotuner.starting import start_of
from haotuner.transfer.kept import load_model, save_model
from haotuner.transfer.shelf import Shelved, shelf, starts
from tests.judgement.cost_examples import BIG_CORE, CPU_DENSE, KERNELS, OP, PAIRS
from tests.work.fake_lab import CORE

FRAME = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
TRUTH = np.asarray(FRAME["expected_log"] - 0.2 * FRAME["tile_rows_log2"], np.float64)


def test_none_is_a_start_from_cold() -> None:
    start = start_of("none", BIG_CORE, "cpu_dense_fp32")
    assert start.model is None and "cold" in start.words and start.document["model"] is None


def test_without_a_word_a_known_device_starts_from_its_own_model() -> None:
    one = shelf()[0]
    start = start_of(None, one.device, "cpu_dense_fp32")
    assert start.model is not None and "the same device" in start.words
    assert start.document == {"model": one.name, "distance": 0.0, "of": one.device.id}


def test_without_a_word_a_new_device_starts_from_all_near_models() -> None:
    start, found = start_of(None, CORE, "cpu_dense_fp32"), starts(CORE, "cpu_dense_fp32")
    assert len(found) > 1 and start.model is not None
    assert start.document["model"] == found[0].name and found[0].name in start.words and f"{len(found)} " in start.words
    assert start.document["with"] == [one.name for one in found[1:]]
    said = [load_model(one.path).predict(FRAME) for one in found]
    nearness = np.array([2.0**-one.distance for one in found])  # one doubling of difference halves a word's weight
    assert start.model.predict(FRAME) == pytest.approx(nearness @ said / nearness.sum())


def test_a_family_without_a_model_starts_cold_and_says_so() -> None:
    start = start_of(None, BIG_CORE, "no_family")
    assert start.model is None and "no_family" in start.words


def damaged(one: Shelved, place: Path) -> Shelved:
    copy = Path(shutil.copy(one.path, place / "model.txt"))
    copy.write_bytes(copy.read_bytes().replace(b"leaf_value", b"leaf_walue", 1))
    return replace(one, path=copy)


def test_a_damaged_shipped_model_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good, *_ = starts(CORE, "cpu_dense_fp32")
    bad = damaged(bad, tmp_path)
    monkeypatch.setattr(starting, "starts", lambda *_: (bad,))
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is None and "damaged" in start.words
    monkeypatch.setattr(starting, "starts", lambda *_: (bad, good))
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is not None and start.document["model"] == good.name
    assert "damaged" in start.words and "damaged" in start.document["left_out"][0]


def test_few_rows_put_level_and_slope_right_and_many_rows_more_than_that() -> None:
    start = Forest().fit(FRAME, TRUTH)
    said = start.predict(FRAME)
    wrong = TRUTH + 0.3 * np.sin(np.arange(len(TRUTH)))  # what no line through the start's words can follow

    def bend(rows: int) -> float:
        found = Started(start).fit(FRAME.iloc[:rows], wrong[:rows]).predict(FRAME)
        level, slope = np.linalg.lstsq(np.stack([np.ones(len(said)), said], axis=1), found, rcond=None)[0]
        return float(np.abs(found - level - slope * said).max())

    assert len(TRUTH) >= TREE_ROWS
    assert bend(TREE_ROWS - 1) < 1e-9 < bend(TREE_ROWS)


def test_a_model_that_the_user_names_must_be_there() -> None:
    with pytest.raises(UsageError, match="no-such"):
        start_of("no-such.txt", BIG_CORE, "cpu_dense_fp32")


def test_a_named_forest_is_started_from_and_put_right(tmp_path: Path) -> None:
    save_model(Forest().fit(FRAME, TRUTH), tmp_path / "model.txt")
    model = start_of(str(tmp_path / "model.txt"), BIG_CORE, "cpu_dense_fp32").model
    assert model is not None
    before = model.predict(FRAME)
    after = model.fit(FRAME.iloc[:40], TRUTH[:40] - 1.0).predict(FRAME)  # a device of the same order, e times slower
    assert np.corrcoef(before, TRUTH)[0, 1] > 0.95 and np.corrcoef(after, TRUTH)[0, 1] > 0.95
    assert np.mean(after - before) == pytest.approx(-1.0, abs=0.2)


def test_a_few_rows_move_the_level_only() -> None:
    start = Forest().fit(FRAME, TRUTH)
    model = Started(start).fit(FRAME.iloc[:3], start.predict(FRAME.iloc[:3]) + 0.5)
    assert model.predict(FRAME) - start.predict(FRAME) == pytest.approx(0.5, abs=1e-6)
    assert len(KERNELS) > 3
