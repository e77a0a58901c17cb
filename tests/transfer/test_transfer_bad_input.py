"""What transfer does with input that cannot be right: a clear error, or a fallback that is announced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haotuner.cost import features
from haotuner.errors import UsageError
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Timed
from haotuner.transfer.fit import fit_model
from haotuner.transfer.reading import DeviceTables, read_records
from haotuner.transfer.saved_model import load_model, save_model
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.warm_start import Started
from tests.bench.transfer_study.ablation import ablate
from tests.bench.transfer_study.evaluate import Evaluation, evaluate, evaluate_family
from tests.bench.transfer_study.modes import Sample, choose_mode, make_pool
from tests.bench.transfer_study.permutation import permute
from tests.bench.transfer_study.survey import survey
from tests.transfer.transfer_examples import COUSIN, KERNELS, NARROW, WIDE, find_device, read, records, tables

pytestmark = pytest.mark.long

FAMILY = "cpu_dense_fp32"


def test_some_times_in_milliseconds_among_microseconds_are_refused() -> None:
    rows = records(WIDE)
    mixed = [
        replace(row, outcome=Timed(samples_us=(row.outcome.median_us / 1e3,))) if at % 7 == 0 else row  # type: ignore[union-attr]
        for at, row in enumerate(rows)
    ]
    with pytest.raises(UsageError, match="are the times microseconds"):
        read_records(mixed, find_device)


def test_one_device_only_cannot_be_evaluated_and_is_fitted_from_scratch_with_a_note() -> None:
    alone = read(WIDE)
    with pytest.raises(UsageError, match="needs records of it and of another device"):
        evaluate(alone, Evaluation(target="wide", seeds=1))
    with pytest.raises(UsageError, match="no family was measured on two devices"):
        survey(alone)
    assert "no other device" in fit_model(alone, WIDE).note


def test_one_sample_only_falls_back_by_preference_and_says_so() -> None:
    wide, cousin = tables(WIDE, COUSIN)
    pool = make_pool(learn_sources([wide], COUSIN, seed=0), [wide], cousin)
    choice = choose_mode(pool, Sample(rows=np.array([3]), labels=cousin.labels[[3]]), 0)
    assert choice.accuracy is None and "too few target samples" in choice.note
    report = evaluate_family(read(WIDE, COUSIN), FAMILY, Evaluation(target="cousin", counts=(0, 1), seeds=1))
    assert report["chosen"]["1"]["notes"] and 0 < report["chosen"]["1"]["best@10"] <= 1


def test_constant_features_and_equal_times_still_give_an_answer() -> None:
    same = [replace(row, outcome=Timed(samples_us=(5e3,))) for device in (WIDE, COUSIN) for row in _one_tile(device)]
    device_tables = read_records(same, find_device)
    report = evaluate_family(device_tables, FAMILY, Evaluation(target="cousin", counts=(0, 2), seeds=1))
    assert report["chosen"]["0"]["best@1"] == 1.0 and report["modes"]["zero-shot"]["0"]["pairwise"] == 1.0


def _one_tile(device: Device) -> list[Record]:
    return records(device, kernels=KERNELS[:2])


def test_a_task_of_a_single_kernel_cannot_be_ranked() -> None:
    single = read_records([*records(WIDE, kernels=KERNELS[:1]), *records(COUSIN, kernels=KERNELS[:1])], find_device)
    with pytest.raises(UsageError, match="no task has two measured kernels"):
        evaluate(single, Evaluation(target="cousin", seeds=1))


def test_labels_that_are_no_numbers_are_refused_before_any_tree_grows() -> None:
    wide, cousin = tables(WIDE, COUSIN)
    broken = replace(wide, labels=np.where(np.arange(len(wide)) == 5, np.nan, wide.labels))
    with pytest.raises(ValueError, match="label 5 is nan"):
        learn_sources([broken], COUSIN, seed=0)
    model = Started(fit_model(DeviceTables(tables=[wide]), cousin.device).model)  # as tuning does
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.fit(cousin.frame.assign(streams=np.nan), cousin.labels)


def test_a_transferred_model_of_another_formula_or_cut_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    fitted = fit_model(read(WIDE, NARROW), COUSIN)
    save_model(fitted.model, path)
    known = {**features._VERSIONS, "streams": features._VERSIONS["streams"] + 1}
    monkeypatch.setattr(features, "_VERSIONS", known)
    with pytest.raises(UsageError, match=r"computed differently now \(streams\).*transfer fit"):
        load_model(path)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match="damaged"):
        load_model(path)


def _scaled(rows: list[Record], factor: float, every: int = 2) -> list[Record]:
    return [
        replace(row, outcome=Timed(samples_us=(row.outcome.median_us * factor,))) if at % every == 0 else row  # type: ignore[union-attr]
        for at, row in enumerate(rows)
    ]


def test_mixed_units_take_one_device_away_and_leave_the_others() -> None:
    for wrong in (
        _scaled(records(WIDE), 1e3),
        [*records(WIDE), *_scaled(records(WIDE), 1e3)],
    ):  # of some, and of the same trials
        device_tables = read_records([*wrong, *records(COUSIN), *records(NARROW)], find_device)
        assert [table.device.id for table in device_tables.of(FAMILY)] == ["cousin", "narrow"]
        (reason,) = device_tables.left_out
        assert "mixed units" in reason and "on wide" in reason and "new store" in reason
        assert device_tables.left_out[reason] == len(records(WIDE))
        evaluate(device_tables, Evaluation(target="cousin", counts=(0,), seeds=1))
        with pytest.raises(UsageError, match="left out: records of .* on wide.*mixed units"):
            evaluate(device_tables, Evaluation(target="wide", seeds=1))
    slow = _scaled(records(WIDE), 50.0, every=30)  # a few slow kernels are no other unit
    assert read_records(slow, find_device).of(FAMILY)


def test_features_that_are_no_numbers_cost_their_rows_only() -> None:
    rows = records(WIDE)
    odd = replace(
        rows[0], trial=replace(rows[0].trial, composition=Composition.of(rows[0].trial.kernel.replace("nr16", "nr0")))
    )
    assert odd != rows[0]
    device_tables = read_records([*rows, odd, *records(COUSIN)], find_device)
    assert len(device_tables.of(FAMILY)[1]) == len(rows) and [
        device_tables.left_out[why] for why in device_tables.left_out if "no numbers" in why
    ] == [1]


def test_halves_too_small_to_rank_are_refused_and_a_survey_goes_on_without() -> None:
    few = records(NARROW, kernels=KERNELS[:1]) + records(NARROW, kernels=KERNELS[1:2])
    device_tables = read_records(
        [*records(WIDE, kernels=KERNELS[::4]), *records(COUSIN, kernels=KERNELS[::4]), *few], find_device
    )
    with pytest.raises(UsageError, match="too few records to be cut into halves.*--split device"):
        evaluate(device_tables, Evaluation(target="narrow", counts=(0,), split="device-and-configs", seeds=5))
    heard: list[str] = []
    document = survey(device_tables, counts=(0,), seeds=1, tell=heard.append)
    splits = document["families"][FAMILY]["splits"]
    assert set(splits["device"]) == {"wide", "cousin", "narrow"} and set(splits["device-and-configs"]) == {"wide", "cousin"}
    assert any(line.startswith(f"left out: {FAMILY} on narrow, device-and-configs") for line in heard)


def test_a_device_with_nothing_to_rank_is_a_source_and_no_target() -> None:
    device_tables = read_records([*records(WIDE), *records(COUSIN), *records(NARROW, kernels=KERNELS[:1])], find_device)
    assert set(permute(device_tables, FAMILY, seeds=1)["true"]) == {"wide", "cousin"}
    assert set(ablate(device_tables, FAMILY, seeds=1)["devices"]["program"]) == {"wide", "cousin"}
    single = read_records([*records(WIDE, kernels=KERNELS[:1]), *records(COUSIN, kernels=KERNELS[:1])], find_device)
    for test in (permute, ablate):
        with pytest.raises(UsageError, match="no device has a task of two"):
            test(single, FAMILY)


def test_more_samples_than_rows_are_announced() -> None:
    report = evaluate(read(WIDE, COUSIN), Evaluation(target="cousin", counts=(16, 1000), seeds=1))
    assert any("1000 samples asked for, all 280 rows taken" in note for note in report["chosen"]["1000"]["notes"])
    assert not any("asked for" in note for note in report["chosen"]["16"]["notes"])
