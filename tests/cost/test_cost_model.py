import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.cost.features import NAMES, features
from haotuner.cost.forest import FEWEST_OWN_ROWS, ONE_DEVICE, Forest, Settings, one_device
from haotuner.cost.model import Analytic, predict_alike
from haotuner.cost.model_file import save
from haotuner.cost.scores import best_at, pairwise_accuracy
from haotuner.errors import UsageError
from haotuner.transfer.saved_model import load_model
from haotuner.transfer.warm_start import Blend
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, KERNELS, OP, PAIRS, SHAPES


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return features(BIG_CORE, CPU_DENSE, OP, PAIRS)


@pytest.fixture(scope="module")
def labels(frame: pd.DataFrame) -> np.ndarray:
    """A truth that departs from the analysis in ways that the features can express, with 1 % noise."""
    odd = 0.3 * np.sin(3 * frame["tile_rows_log2"]) - 0.2 * frame["l2_fill_log2"].clip(lower=0)
    return np.asarray(frame["expected_log"] + odd + np.random.default_rng(0).normal(0, 0.01, len(frame)))


def mean_pairwise(scores: np.ndarray, labels: np.ndarray) -> float:
    tasks = range(0, len(labels), len(KERNELS))
    assert len(tasks) == len(SHAPES)
    return float(np.mean([pairwise_accuracy(scores[t : t + len(KERNELS)], labels[t : t + len(KERNELS)]) for t in tasks]))


def test_a_forest_beats_the_analysis_from_sixty_rows_and_never_falls_far_below(frame, labels) -> None:
    analytic = mean_pairwise(Analytic().predict(frame), labels)
    order = np.random.default_rng(1).permutation(len(frame))
    reached = {}
    for rows in (1, 5, 20, 60, 300):
        part = order[:rows]
        reached[rows] = mean_pairwise(Forest().fit(frame.iloc[part], labels[part]).predict(frame), labels)
    assert reached[1] == pytest.approx(analytic)  # one row tells the level, not the order
    assert reached[20] > analytic - 0.05
    assert reached[60] > analytic + 0.05
    assert reached[300] > 0.95


def test_the_same_rows_and_seed_give_the_same_model_byte_for_byte(frame, labels) -> None:
    assert Forest(seed=3).fit(frame, labels).state() == Forest(seed=3).fit(frame, labels).state()
    assert Forest(seed=3).fit(frame, labels).state() != Forest(seed=4).fit(frame, labels).state()


@settings(max_examples=20)
@given(order=st.permutations(range(12)))
def test_predictions_do_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    frame = features(BIG_CORE, CPU_DENSE, OP, PAIRS[:200])
    labels = frame["expected_log"] - 0.2 * frame["tile_rows_log2"]
    model = Forest().fit(frame, labels)
    assert (model.predict(frame.iloc[order]) == model.predict(frame.iloc[:12])[order]).all()


def test_a_saved_model_predicts_the_same(frame, labels, tmp_path: Path) -> None:
    model = Forest().fit(frame, labels)
    model.facts["source"] = "test"
    save(model, tmp_path / "model.txt")
    again = load_model(tmp_path / "model.txt")
    assert (again.predict(frame) == model.predict(frame)).all()
    assert again.facts == {"source": "test"}


def test_lines_in_leaves_follow_a_line_that_constants_cannot_and_are_saved(frame, labels, tmp_path: Path) -> None:
    straight = np.asarray(0.3 * frame["far_balance_log2"] + 0.2 * frame["tile_rows_log2"])
    lines, constants = (Settings(slope=0.0, linear=linear) for linear in (0.01, None))
    models = [Forest(settings=kind).fit(frame.iloc[::2], straight[::2]) for kind in (lines, constants)]
    errors = [float(np.std(model.predict(frame)[1::2] - straight[1::2])) for model in models]
    assert errors[0] < 0.5 * errors[1]
    save(models[0], tmp_path / "model.txt")
    again = load_model(tmp_path / "model.txt")
    assert isinstance(again, Forest) and again.settings == lines
    assert (again.predict(frame) == models[0].predict(frame)).all()


def test_a_model_of_one_device_has_lines_once_there_are_rows_for_them() -> None:
    assert one_device(FEWEST_OWN_ROWS) is ONE_DEVICE
    assert one_device(FEWEST_OWN_ROWS - 1) == Settings()


def test_a_model_of_one_row_is_saved_without_trees(frame, labels, tmp_path: Path) -> None:
    model = Forest().fit(frame.iloc[:1], labels[:1])
    save(model, tmp_path / "model.txt")
    assert (load_model(tmp_path / "model.txt").predict(frame) == model.predict(frame)).all()


@pytest.mark.parametrize("at", [0, 20, 100, 3000, -2])
def test_a_damaged_model_is_refused_before_lightgbm_sees_it(frame, labels, tmp_path: Path, at: int) -> None:
    path = tmp_path / "model.txt"
    save(Forest().fit(frame, labels), path)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x01
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="damaged|not a saved"):
        load_model(path)
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UsageError, match="damaged|not a saved"):
        load_model(path)


def test_a_missing_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="haotuner transfer fit"):
        load_model(tmp_path / "none.txt")


def test_a_header_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    import hashlib

    for header in ("not json", json.dumps([1]), json.dumps({"line": [0, 0]})):
        body = header + "\n"
        path = tmp_path / "model.txt"
        path.write_text(f"haotuner-model-1 {hashlib.sha256(body.encode()).hexdigest()}\n{body}")
        with pytest.raises(UsageError, match="header"):
            load_model(path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_labels_that_are_not_finite_are_refused(frame, bad: float) -> None:
    labels = np.zeros(len(frame))
    labels[5] = bad
    with pytest.raises(ValueError, match="label 5 is"):
        Forest().fit(frame, labels)


def test_features_with_nan_other_columns_and_wrong_lengths_are_refused(frame, labels) -> None:
    with pytest.raises(ValueError, match="NaN or infinity in streams"):
        Forest().fit(frame.assign(streams=np.nan), labels)
    with pytest.raises(ValueError, match="not the features"):
        Forest().fit(frame.drop(columns="streams"), labels)
    model = Forest().fit(frame, labels)
    assert (model.predict(frame[list(reversed(NAMES))]) == model.predict(frame)).all()
    with pytest.raises(ValueError, match="as many labels"):
        Forest().fit(frame, labels[:-1])
    with pytest.raises(ValueError, match="weights"):
        Forest().fit(frame, labels, -np.ones(len(frame)))
    with pytest.raises(ValueError, match="not fitted"):
        Forest().predict(frame)


def test_constant_labels_and_constant_features_still_give_a_model(frame) -> None:
    assert np.isfinite(Forest().fit(frame, np.full(len(frame), -1.0)).predict(frame)).all()
    same = pd.concat([frame.iloc[:1]] * 50, ignore_index=True)
    model = Forest().fit(same, np.linspace(-1, 0, 50))
    assert np.ptp(model.predict(same)) == 0


def test_a_heavier_row_pulls_the_model(frame, labels) -> None:
    part, target = frame.iloc[:40], labels[:40].copy()
    target[7] += 2.0
    heavy = np.where(np.arange(40) == 7, 100.0, 1.0)
    assert Forest().fit(part, target, heavy).predict(part)[7] > Forest().fit(part, target).predict(part)[7]


def test_best_at_one_of_a_perfect_model_is_one(frame, labels) -> None:
    assert best_at(labels, np.exp(labels), 1) == 1.0


def test_a_blend_says_the_weighted_mean(frame, labels) -> None:
    forest, other = Forest(seed=0).fit(frame, labels), Analytic()
    a, b = forest.predict(frame), other.predict(frame)
    assert Blend([forest, other]).predict(frame) == pytest.approx((a + b) / 2)
    assert Blend([forest, other], [3, 1]).predict(frame) == pytest.approx(0.75 * a + 0.25 * b)


def test_rows_are_asked_tile_by_tile_and_answered_in_their_own_order(frame) -> None:
    shuffled = frame.iloc[np.random.default_rng(3).permutation(len(frame))]
    tile = ["tile_rows_log2", "tile_cols_log2", "tile_intensity_log2"]
    batches: list[pd.DataFrame] = []

    def predict(rows: pd.DataFrame) -> np.ndarray:
        batches.append(rows)
        return np.asarray(rows["expected_log"], np.float64)

    assert predict_alike(shuffled, predict).tolist() == shuffled["expected_log"].tolist()
    runs = 1 + int((np.diff(batches[0][tile], axis=0) != 0).any(axis=1).sum())
    assert runs == len(frame[tile].drop_duplicates()) < len(frame)
    assert predict_alike(frame.iloc[:0], predict).shape == (0,)


@pytest.mark.parametrize(("models", "weights"), [(0, None), (1, [1, 1]), (2, [0, 0]), (2, [1, -1]), (2, [1, np.nan])])
def test_a_blend_without_anything_to_weigh_is_refused(models: int, weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match=f"a blend of {models} models"):
        Blend([Analytic()] * models, weights)
