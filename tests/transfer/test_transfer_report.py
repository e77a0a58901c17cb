import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.forest import Forest
from haotuner.cost.model_file import Saved, write
from haotuner.errors import UsageError
from haotuner.transfer.fit import fit_model
from haotuner.transfer.reading import DeviceTables
from haotuner.transfer.saved_model import Transferred, load_model, save_model
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.warm_start import Started
from tests.bench.transfer_study.ablation import ablate
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.curves import curve_of, first_reaching, mean_of, walk_down
from tests.bench.transfer_study.evaluate import Evaluation, evaluate, joined
from tests.bench.transfer_study.modes import LEARNING, SAMPLE_FREE
from tests.bench.transfer_study.objectives import GRADES, OBJECTIVES, _grades
from tests.bench.transfer_study.permutation import permute
from tests.bench.transfer_study.simulate import SimulatedRun, _note_legs
from tests.bench.transfer_study.splits import half_of_kernels, rows_within
from tests.bench.transfer_study.started_mode import STARTED
from tests.transfer.transfer_examples import COUSIN, DEVICES, NARROW, WIDE, read, tables

pytestmark = pytest.mark.long

FAMILY = "cpu_dense_fp32"
KEYS = {"pairwise", "best@1", "best@5", "best@10"}


@pytest.fixture(scope="module")
def three() -> DeviceTables:
    return read(WIDE, COUSIN, NARROW)


@pytest.fixture(scope="module")
def report(three: DeviceTables) -> dict[str, Any]:
    return evaluate(three, Evaluation(target="cousin", counts=(0, 16, 32), seeds=2))


# the report of `transfer evaluate`
def test_the_report_has_the_keys_of_the_contract_and_is_json(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report)) == report
    assert report["target"] == "cousin" and report["split"] == "device"
    for mode in SAMPLE_FREE:
        assert set(report["modes"][mode]) == {"0"}
    for mode in LEARNING:
        assert set(report["modes"][mode]) == {"16", "32"}
    assert set(report["modes"][STARTED]) == {"16", "32"}, "what tune runs is judged, too"
    assert set(report["chosen"]) == {"0", "16", "32"}
    for point in [*report["chosen"].values(), *(p for by in report["modes"].values() for p in by.values())]:
        assert set(point) >= KEYS and all(0 <= point[key] <= 1 for key in KEYS)
        assert point["best@1"] <= point["best@5"] <= point["best@10"]
    assert all(chosen["mode"] and "gauge" in chosen for chosen in report["chosen"].values())
    assert {"copy", "analytic", "random", "start"} <= set(report["baselines"])
    for mode in (*LEARNING, *SAMPLE_FREE, STARTED, "chosen"):
        reach = report["measurements_to"][mode]
        assert reach["0.95"] <= reach["0.97"] <= reach["0.99"]


def test_intervals_hold_their_means_and_regret_ends_below_its_start(report: dict[str, Any]) -> None:
    for mode, by in report["modes"].items():
        for count, point in by.items():
            for key in KEYS:
                low, high = report["intervals"]["modes"][mode][count][key]
                assert low - 1e-12 <= point[key] <= high + 1e-12
    for regrets in report["regret"].values():
        values = list(regrets.values())
        assert all(0.0 <= regret <= 1.0 for regret in values) and values[-1] < values[0]


def test_the_same_question_has_the_same_answer(three: DeviceTables, report: dict[str, Any]) -> None:
    assert evaluate(three, Evaluation(target="cousin", counts=(0, 16, 32), seeds=2)) == report


def test_transfer_beats_chance_and_no_transfer_on_a_cousin(report: dict[str, Any]) -> None:
    assert report["baselines"]["random"]["pairwise"] == pytest.approx(0.5, abs=0.05)
    assert report["chosen"]["16"]["pairwise"] > report["modes"]["from-scratch"]["16"]["pairwise"]


def test_where_the_kernels_are_new_too_nothing_can_be_copied(three: DeviceTables) -> None:
    evaluation = evaluate(three, Evaluation(target="wide", counts=(0, 16), split="device-and-configs", seeds=2))
    assert "copy" not in evaluation["modes"] and "copy" not in evaluation["baselines"]
    target, source, _ = tables(WIDE, COUSIN, NARROW)
    half = half_of_kernels([target, source], 0)
    hidden, shown = target.take(rows_within(target, half, inside=False)), source.take(rows_within(source, half, inside=True))
    assert not set(hidden.kernels) & set(shown.kernels)
    assert set(hidden.kernels) | set(shown.kernels) == set(target.kernels)


def test_without_samples_there_is_zero_shot_and_copy_only(three: DeviceTables) -> None:
    evaluation = evaluate(three, Evaluation(target="narrow", counts=(0,), seeds=1))
    assert set(evaluation["modes"]) == set(SAMPLE_FREE) and set(evaluation["chosen"]) == {"0"}


def test_more_samples_than_rows_measure_everything(three: DeviceTables) -> None:
    evaluation = evaluate(three, Evaluation(target="narrow", counts=(100000,), seeds=1))
    assert evaluation["chosen"]["100000"]["best@1"] == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": "week"}, "unknown split"),
        ({"seeds": 0}, "seeds"),
        ({"counts": ()}, "samples"),
        ({"counts": (-1,)}, "samples"),
    ],
)
def test_questions_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Evaluation(**{"target": "wide", **fields})


def test_one_device_only_is_refused_and_says_what_to_do() -> None:
    heard: list[str] = []
    with pytest.raises(UsageError, match="records of it and of another device.*haotuner records import"):
        evaluate(read(WIDE), Evaluation(target="wide", seeds=1), heard.append)
    assert "transfer needs wide and another" in heard[0]
    with pytest.raises(UsageError, match="the store has cousin, wide"):
        evaluate(read(WIDE, COUSIN), Evaluation(target="narrow", seeds=1))
    for test in (permute, ablate):
        with pytest.raises(UsageError, match="at least two devices"):
            test(read(WIDE), FAMILY)


# scores


def test_measured_rows_count_as_found_and_walks_take_turns() -> None:
    (table,) = tables(WIDE)
    scores = TargetScores.of(table)
    best = np.array([rows[np.argmax(np.exp(table.labels)[rows])] for rows in scores.groups])
    worst = -table.labels
    assert scores.score(worst, best)["best@1"] == 1.0 > scores.score(worst)["best@1"]
    assert curve_of(scores, best).tolist() == [0.5, 1.0]
    walk = walk_down(scores, table.labels, np.array([], np.int64), 4)
    assert set(walk[:2].tolist()) == set(best.tolist()) and curve_of(scores, walk)[1] == 1.0
    assert first_reaching([0.2, 0.9, 0.96], 0.95) == 3 and first_reaching([0.2], 0.95) is None


def test_a_curve_shows_a_sample_from_the_measurement_on_that_pays_for_it() -> None:
    (table,) = tables(WIDE)
    scores, done = TargetScores.of(table), SimulatedRun()
    order = np.argsort(-table.labels, kind="stable")  # the best first
    first, walk, second = order[-4:], order[:4], order[-8:]
    nothing = np.array([], np.int64)
    _note_legs(done, "residual", scores, [(first, walk), (second, nothing)])
    curve = done.curves["residual"]
    assert curve[:7].tolist() == curve_of(scores, np.concatenate([first, walk]))[:7].tolist()
    assert curve[7] == curve_of(scores, second)[-1] < curve[6]  # eight measurements pay for the sample, which found less


def test_families_are_joined_with_shares_that_add_up_to_one() -> None:
    summary = {"seeds": 20, "chosen": {"16": {"mode": "residual", "picked": {"residual": 1.0}, "notes": {}, "gauge": None}}}
    other = {
        "seeds": 20,
        "chosen": {
            "16": {
                "mode": "from-scratch",
                "picked": {"residual": 0.2, "from-scratch": 0.8},
                "notes": {"few": 0.5},
                "gauge": 0.5,
            }
        },
    }
    combined = joined([summary, other])
    assert combined["seeds"] == 20 and isinstance(combined["seeds"], int)
    assert combined["chosen"]["16"]["picked"] == {"residual": 0.6, "from-scratch": 0.4}
    assert combined["chosen"]["16"]["notes"] == {"few": 0.25} and combined["chosen"]["16"]["gauge"] == 0.5


# the hardware


def test_swapping_profiles_costs_accuracy_and_equal_profiles_cost_nothing() -> None:
    permuted = permute(read(WIDE, NARROW), FAMILY, seeds=2)
    assert permuted["mean_cost"] > 0 and len(permuted["swaps"]) == 2
    twins = [replace(table, device=replace(WIDE, id=table.device.id)) for table in tables(WIDE, COUSIN)]
    assert permute(DeviceTables(tables=twins), FAMILY)["mean_cost"] == pytest.approx(0.0, abs=0.02)


def test_the_ablation_scores_every_variant_on_every_device(three: DeviceTables) -> None:
    ablation = ablate(three, FAMILY, seeds=1)
    assert {"program", "resource", "analysis"} <= set(ablation["means"])
    assert all(set(by_device) == set(DEVICES) for by_device in ablation["devices"].values())
    assert ablation["means"]["program+near+analysis"]["pairwise"] > ablation["means"]["program"]["pairwise"] - 0.01
    means = {name: tuple(scores.values()) for name, scores in ablation["means"].items()}
    assert len(set(means.values())) == len(means) >= 7  # each step changes something
    sources = [
        learn_sources([t for t in three.of(FAMILY) if t is not target], target.device, seed=0) for target in three.of(FAMILY)
    ]
    whole = [
        TargetScores.of(t).score(s.zero_shot(s.columns(t.frame))) for s, t in zip(sources, three.of(FAMILY), strict=True)
    ]
    assert ablation["means"]["program+near+analysis+joint+memory"] == mean_of(whole)
    assert set(ablation["objectives"]) == set(OBJECTIVES)
    for objective, by_source in ablation["objectives"].items():  # made-up devices are easy: every objective must learn them
        assert by_source["own samples"]["pairwise"] > 0.6, objective
        assert by_source["device out"]["pairwise"] > 0.6, objective


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=300))
def test_grades_keep_the_order_and_stay_within_what_lightgbm_takes(labels: list[float]) -> None:
    grades = _grades(np.array(labels))
    assert grades.min() >= 0 and grades.max() < GRADES
    assert (np.diff(grades[np.argsort(labels, kind="stable")]) >= 0).all()


# models to keep


def test_a_fitted_model_is_saved_and_predicts_the_same(three: DeviceTables, tmp_path: Path) -> None:
    fitted = fit_model(three, COUSIN)
    assert isinstance(fitted.model, Transferred) and fitted.mode == "own records" and fitted.rows > 0
    save_model(fitted.model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    (table,) = tables(COUSIN)
    assert (again.predict(table.frame) == fitted.model.predict(table.frame)).all()
    facts = {
        "family": "cpu_dense_fp32",
        "target": "cousin",
        "sources": ["narrow", "wide", "cousin"],
        "target_rows": len(table),
    }
    assert again.facts == facts


def test_a_model_for_an_absent_device_is_zero_shot_and_learns_when_it_is_fitted(tmp_path: Path) -> None:
    fitted = fit_model(read(WIDE, NARROW), COUSIN)
    assert fitted.mode == "zero-shot" and "no records of cousin" in fitted.note
    save_model(fitted.model, tmp_path / "model")
    model = Started(load_model(tmp_path / "model"))  # as tuning does
    (table,) = tables(COUSIN)
    scores, before = TargetScores.of(table), model.predict(table.frame)
    seen = np.random.default_rng(0).permutation(len(table))[:48]
    after = model.fit(table.frame.iloc[seen], table.labels[seen]).predict(table.frame)
    assert scores.score(after, seen)["pairwise"] > scores.score(before, seen)["pairwise"] - 0.01
    assert abs(np.mean(after - table.labels)) < abs(np.mean(before - table.labels)) + 0.05
    again = model.fit(table.frame.iloc[seen], table.labels[seen]).predict(table.frame)
    assert (again == after).all()


def test_without_other_devices_the_model_is_from_scratch_and_says_so() -> None:
    fitted = fit_model(read(WIDE), WIDE)
    assert isinstance(fitted.model, Forest) and "no other device" in fitted.note


def test_an_unknown_family_is_refused(three: DeviceTables) -> None:
    with pytest.raises(UsageError, match="the store has cpu_dense_fp32"):
        fit_model(three, WIDE, family="gpu_magic")


def test_damaged_models_and_unknown_kinds_are_refused(three: DeviceTables, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_model(fit_model(three, COUSIN).model, path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="damaged"):
        load_model(path)
    write(path, Saved(kind="oracle", state={}, texts=()))
    with pytest.raises(UsageError, match="'oracle'"):
        load_model(path)
