"""Where tuning starts: the nearest shipped model, a named one, or cold."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.model import HasEnsemble, HasSpread
from haotuner.errors import UsageError
from haotuner.search.observations import LEAST_STARTED_ROWS
from haotuner.transfer import models_shipped as shipping
from haotuner.transfer.fit import fit_model
from haotuner.transfer.models_shipped import ShippedModel, ShippedModels, models_shipped, starting_models
from haotuner.transfer.reading import read_records
from haotuner.transfer.saved_model import Transferred, load_model, save_model
from haotuner.transfer.warm_start import TREE_ROWS, Started
from haotuner.tuning import initial_model
from haotuner.tuning.initial_model import Starts, start_of
from tests.bench.transfer_study.calibrate import TargetScores
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, KERNELS, OP, PAIRS
from tests.search.fake_lab import CORE
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, find_device, records, tables

FRAME = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
TRUTH = np.asarray(FRAME["expected_log"] - 0.2 * FRAME["tile_rows_log2"], np.float64)


def test_none_is_a_start_from_cold() -> None:
    start = start_of("none", BIG_CORE, "cpu_dense_fp32")
    assert start.model is None and "cold" in start.words and start.document["model"] is None


def test_without_a_word_a_known_device_starts_from_its_own_model() -> None:
    shipped = models_shipped().models[0]
    start = start_of(None, shipped.device, "cpu_dense_fp32")
    assert start.model is not None and "the same device" in start.words
    assert start.document == {"model": shipped.name, "distance": 0.0, "of": shipped.device.id}


def test_without_a_word_a_new_device_starts_from_all_near_models() -> None:
    start, near_models = start_of(None, CORE, "cpu_dense_fp32"), starting_models(CORE, "cpu_dense_fp32").models
    assert len(near_models) > 1 and start.model is not None
    assert (
        start.document["model"] == near_models[0].name
        and near_models[0].name in start.words
        and f"{len(near_models)} " in start.words
    )
    assert start.document["with"] == [model.name for model in near_models[1:]]
    predictions = [load_model(model.path).predict(FRAME) for model in near_models]
    nearness = np.array([2.0**-model.distance for model in near_models])  # one doubling of difference halves a word's weight
    assert start.model.predict(FRAME) == pytest.approx(nearness @ predictions / nearness.sum())


def test_every_family_of_a_run_has_a_start_of_its_own(tmp_path: Path) -> None:
    save_model(Forest(seed=0).fit(FRAME, TRUTH), tmp_path / "mine.txt")
    starts = Starts(str(tmp_path / "mine.txt"), CORE)
    assert starts.of("cpu_dense_fp32").document == {"model": str(tmp_path / "mine.txt")}
    assert starts.model("no_family") is None and starts.model("cpu_dense_fp32") is not None
    assert starts.words == starts.of("cpu_dense_fp32").words
    assert Starts("none", CORE).of("cpu_dense_fp32").model is None


def test_a_family_without_a_model_starts_cold_and_says_so() -> None:
    start = start_of(None, BIG_CORE, "no_family")
    assert start.model is None and "no_family" in start.words


def damaged(model: ShippedModel, folder: Path) -> ShippedModel:
    copy = Path(shutil.copy(model.path, folder / "model.txt"))
    copy.write_bytes(copy.read_bytes().replace(b"leaf_value", b"leaf_walue", 1))
    return replace(model, path=copy)


def test_a_damaged_shipped_model_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good, *_ = starting_models(CORE, "cpu_dense_fp32").models
    bad = damaged(bad, tmp_path)
    monkeypatch.setattr(initial_model, "starting_models", lambda *_: ShippedModels(models=(bad,)))
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is None and "damaged" in start.words and "damaged" in start.document["left_out"][0]
    monkeypatch.setattr(initial_model, "starting_models", lambda *_: ShippedModels(models=(bad, good)))
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is not None and start.document["model"] == good.name
    assert "damaged" in start.words and "damaged" in start.document["left_out"][0]


@pytest.mark.parametrize("content", ["", "{}", '{"model": "x.txt"'])
def test_a_shipped_model_of_damaged_provenance_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    shutil.copytree(shipping.folder(), tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(shipping, "folder", lambda: tmp_path)
    whole = start_of(None, CORE, "cpu_dense_fp32")
    bad = tmp_path / f"{whole.document['model']}.json"
    bad.write_text(content)
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is not None and start.document["model"] == whole.document["with"][0]
    assert bad.name in start.words and "left out" in start.words and bad.name in start.document["left_out"][0]
    for path in tmp_path.glob("*.json"):
        path.write_text(content)
    start = start_of(None, CORE, "cpu_dense_fp32")
    assert start.model is None and start.words.startswith("from cold") and bad.name in start.words
    assert len(start.document["left_out"]) == len(list(tmp_path.glob("*.json"))), "of which family these were nobody knows"


def test_few_rows_put_level_and_slope_right_and_many_rows_more_than_that() -> None:
    start = Forest().fit(FRAME, TRUTH)
    predictions = start.predict(FRAME)
    wrong = TRUTH + 0.3 * np.sin(np.arange(len(TRUTH)))  # what no line through the start's words can follow

    def bend(rows: int) -> float:
        corrected = Started(start).fit(FRAME.iloc[:rows], wrong[:rows]).predict(FRAME)
        level, slope = np.linalg.lstsq(np.stack([np.ones(len(predictions)), predictions], axis=1), corrected, rcond=None)[0]
        return float(np.abs(corrected - level - slope * predictions).max())

    assert len(TRUTH) >= TREE_ROWS
    assert bend(TREE_ROWS - 1) < 1e-9 < bend(TREE_ROWS)


def test_a_model_that_the_user_names_must_be_there() -> None:
    with pytest.raises(UsageError, match="no-such"):
        start_of("no-such.txt", BIG_CORE, "cpu_dense_fp32")


def test_a_named_model_of_another_family_is_refused(tmp_path: Path) -> None:
    for others in ((NARROW,), ()):  # what transfer learnt, and a plain forest of the device's own records
        rows = [row for device in (*others, WIDE) for row in records(device)]
        save_model(fit_model(read_records(rows, find_device), WIDE).model, tmp_path / "model")
        assert start_of(str(tmp_path / "model"), WIDE, "cpu_dense_fp32").model is not None
        with pytest.raises(
            UsageError, match="ranks cpu_dense_fp32 .*needs one for cuda_gemm.*transfer fit --family cuda_gemm"
        ):
            start_of(str(tmp_path / "model"), WIDE, "cuda_gemm")


def test_a_named_model_that_does_not_say_its_family_is_taken_for_any(tmp_path: Path) -> None:
    save_model(Forest().fit(FRAME, TRUTH), tmp_path / "model")
    assert start_of(str(tmp_path / "model"), WIDE, "cuda_gemm").model is not None


def test_a_named_forest_is_started_from_and_put_right(tmp_path: Path) -> None:
    save_model(Forest().fit(FRAME, TRUTH), tmp_path / "model.txt")
    model = start_of(str(tmp_path / "model.txt"), BIG_CORE, "cpu_dense_fp32").model
    assert model is not None
    before = model.predict(FRAME)
    after = model.fit(FRAME.iloc[:40], TRUTH[:40] - 1.0).predict(FRAME)  # a device of the same order, e times slower
    assert np.corrcoef(before, TRUTH)[0, 1] > 0.95 and np.corrcoef(after, TRUTH)[0, 1] > 0.95
    assert np.mean(after - before) == pytest.approx(-1.0, abs=0.2)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model file of ``transfer fit`` for a target with records: it is a source for itself, beside far-off ones."""
    far = [*records(WIDE, odd=-0.6), *records(NARROW, odd=-0.6, seed=2), *records(COUSIN, seed=1)]
    fitted_model = fit_model(read_records(far, find_device), COUSIN)
    assert isinstance(fitted_model.model, Transferred) and fitted_model.mode == "own records"
    path = tmp_path_factory.mktemp("fitted") / "model"
    save_model(fitted_model.model, path)
    return path


def test_a_named_model_keeps_what_the_target_s_own_records_taught_it(fitted: Path) -> None:
    [table] = tables(COUSIN)
    scores, model = TargetScores.of(table), start_of(str(fitted), COUSIN, "cpu_dense_fp32").model
    assert model is not None
    seen = np.random.default_rng(0).permutation(len(table))[:LEAST_STARTED_ROWS]
    before = scores.score(model.predict(table.frame))["pairwise"]
    after = scores.score(model.fit(table.frame.iloc[seen], table.labels[seen]).predict(table.frame))["pairwise"]
    assert before > 0.95 and after > before - 0.02


def test_a_named_model_of_any_kind_says_how_far_off_it_is_and_adds_trees_of_the_seed(fitted: Path, tmp_path: Path) -> None:
    save_model(Forest().fit(FRAME, TRUTH), tmp_path / "model")
    odd = TRUTH + 0.3 * np.sin(np.arange(len(TRUTH)))
    for path in (fitted, tmp_path / "model"):
        models = [start_of(str(path), COUSIN, "cpu_dense_fp32", seed=seed).model for seed in (1, 1, 2)]
        predictions = [
            model.fit(FRAME.iloc[:TREE_ROWS], odd[:TREE_ROWS]).predict(FRAME) for model in models if model is not None
        ]
        assert all(isinstance(model, HasSpread) and (model.spread(FRAME) > 0).all() for model in models)
        assert (predictions[0] == predictions[1]).all() and (predictions[0] != predictions[2]).any()


@pytest.mark.long
def test_what_transfer_learnt_of_several_sources_shares_what_is_measured_first_among_them(tmp_path: Path) -> None:
    fitted = fit_model(read_records([*records(WIDE), *records(NARROW, odd=-0.6)], find_device), COUSIN)
    save_model(fitted.model, tmp_path / "model")
    start = start_of(str(tmp_path / "model"), COUSIN, "cpu_dense_fp32")
    assert isinstance(start.model, HasEnsemble) and start.document["opinions_of"] == 2
    assert "2 sources share what is measured first" in start.words
    [table] = tables(COUSIN)
    opinions, none = start.model.opinions(table.frame), np.zeros(0, np.int64)
    head = start.model.head(table.frame, table.tasks, 24, none, none)
    assert len(set(head.tolist())) == 24
    for task in (0, 1):
        rows = np.flatnonzero(table.tasks == task)
        # a forest and what it measured, of either source
        firsts = {int(rows[np.argmax(each[rows])]) for each in opinions[:4]}
        assert len(firsts) > 1 and firsts <= set(head.tolist())
    assert len(opinions) >= 6, "forests, copies, their mean, the joint forest and the analysis"
    model = load_model(tmp_path / "model")
    assert isinstance(model, Transferred) and isinstance(fitted.model, Transferred)
    assert model.sources.distances == pytest.approx(fitted.model.sources.distances)


def test_where_the_target_s_own_records_tell_who_is_right_nobody_shares(fitted: Path) -> None:
    start = start_of(str(fitted), COUSIN, "cpu_dense_fp32")
    assert start.model is not None and not isinstance(start.model, HasEnsemble) and "share" not in start.words


def test_a_few_rows_move_the_level_only() -> None:
    start = Forest().fit(FRAME, TRUTH)
    model = Started(start).fit(FRAME.iloc[:3], start.predict(FRAME.iloc[:3]) + 0.5)
    assert model.predict(FRAME) - start.predict(FRAME) == pytest.approx(0.5, abs=1e-6)
    assert len(KERNELS) > 3
