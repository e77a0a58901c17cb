"""Who may be a source of whom, and what the whole of a report says beside its targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.transfer.experts import SHARES
from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.across_devices import best_single
from tests.bench.transfer_study.calibrate import CANDIDATES, Fold, chosen, folds_for
from tests.bench.transfer_study.evaluate import Evaluation, evaluate_family, settings_document, without_relatives
from tests.bench.transfer_study.learning_curve import SUBSETS, learning_curve
from tests.bench.transfer_study.report import report
from tests.bench.transfer_study.splits import architecture
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, read, tables

pytestmark = pytest.mark.long

FAMILY = "cpu_dense_fp32"


@pytest.fixture(scope="module")
def three() -> DeviceTables:
    """Wide and cousin are one architecture, narrow is another."""
    device_tables = read(WIDE, COUSIN, NARROW)
    device_tables.tables = [
        replace(table, device=replace(table.device, arch="haswell")) if table.device.id == "narrow" else table
        for table in device_tables.tables
    ]
    return device_tables


@pytest.fixture(scope="module")
def document(three: DeviceTables) -> dict[str, Any]:
    return report(three, counts=(0, 16), seeds=2)


@pytest.mark.parametrize(
    ("device", "other", "same"),
    [
        ("titan-rtx", "rtx-2080-ti", True),
        ("a4000", "rtx-3090", True),
        ("a4000", "titan-rtx", False),
        ("h100", "a100-80gb", False),
        ("w6600", "w7800", True),
        ("w6600", "mi250x", False),
        ("w6600", "a4000", False),
    ],
)
def test_an_architecture_is_read_off_the_profile(device: str, other: str, same: bool) -> None:
    both = [find_device(name, measure=False) for name in (device, other)]
    assert (architecture(both[0]) == architecture(both[1])) == same
    renamed = replace(both[0], id="some-device", name="some device")
    assert architecture(renamed) == architecture(both[0])


def test_no_relative_of_the_target_is_a_source_when_its_architecture_is_out(three: DeviceTables) -> None:
    for table in three.of(FAMILY):
        others = [other for other in three.of(FAMILY) if other is not table]
        _, left = without_relatives(table, others, "architecture")
        assert all(architecture(other.device) != architecture(table.device) for other in left)
        assert without_relatives(table, others, "device")[1] == others


def test_a_target_whose_relatives_are_all_there_is_says_so() -> None:
    with pytest.raises(UsageError, match="no device of another architecture than cpu znver4"):
        evaluate_family(read(WIDE, COUSIN), FAMILY, Evaluation(target="cousin", counts=(0,), seeds=1, split="architecture"))


def test_a_report_has_every_split_and_reuses_runs_with_the_same_sources(document: dict[str, Any]) -> None:
    facts = document["families"][FAMILY]
    assert {split: set(by) for split, by in facts["splits"].items()} == {
        "device": {"wide", "cousin", "narrow"},
        "architecture": {"wide", "cousin", "narrow"},
        "device-and-configs": {"wide", "cousin", "narrow"},
    }
    out, alone = facts["splits"]["architecture"], facts["splits"]["device"]
    assert out["narrow"]["modes"] == alone["narrow"]["modes"] and out["wide"]["modes"] != alone["wide"]["modes"]


def test_folds_never_see_the_outer_target_nor_with_its_architecture_out_a_relative(three: DeviceTables) -> None:
    architectures = {table.device.id: architecture(table.device) for table in three.tables}
    for outer in architectures:
        for fold in folds_for(three, outer, "device"):
            assert outer not in (fold.target, *fold.sources) and fold.target not in fold.sources and fold.sources
        for fold in folds_for(three, outer, "architecture"):
            assert architectures[outer] not in {architectures[name] for name in (fold.target, *fold.sources)}
            assert architectures[fold.target] not in {architectures[name] for name in fold.sources}
    assert {(fold.target, fold.sources) for fold in folds_for(three, "narrow", "device")} == {
        ("wide", ("cousin",)), ("cousin", ("wide",)),
    }  # fmt: skip


def test_folds_choose_other_weights_only_if_these_are_proved_better() -> None:
    folds = [Fold(family=FAMILY, target=name, sources=("other",)) for name in ("first", "second")]
    level = [0.9] * len(CANDIDATES)
    assert chosen({fold: level for fold in folds}).shares == chosen({}).shares == SHARES, "where none can tell, the default"
    weighed = [*level[:-1], 0.92]
    assert chosen({folds[0]: level, folds[1]: weighed}).shares == CANDIDATES[-1]
    assert chosen({folds[0]: level, folds[1]: [*level[:-1], 0.908]}).shares == SHARES, "a lead of 0.004 proves nothing"
    document = settings_document(chosen({fold: weighed for fold in folds}))
    assert document["folds"] == {f"{FAMILY} first": 0.92, f"{FAMILY} second": 0.92} and "halving" in document["chosen"]


def test_a_report_names_what_was_chosen_on_which_folds(document: dict[str, Any]) -> None:
    for target, split_report in document["families"][FAMILY]["splits"]["device"].items():
        assert split_report["settings"]["chosen"] and f"{FAMILY} {target}" not in split_report["settings"]["folds"]
        assert len(split_report["settings"]["folds"]) == 2


def test_means_over_targets_lie_within_their_intervals_and_above_the_worst(document: dict[str, Any]) -> None:
    for across in document["families"][FAMILY]["across"].values():
        for name in ("chosen", "guided", "from-scratch"):
            for summary in across[name].values():
                low, high = summary["interval"]
                assert low - 1e-12 <= summary["mean"] <= high + 1e-12 and summary["least"] <= summary["mean"] + 1e-12


def test_the_best_opinion_alone_is_told_with_its_lead(document: dict[str, Any]) -> None:
    facts = document["families"][FAMILY]
    for target, single in facts["across"]["device"]["single"].items():
        split_report = facts["splits"]["device"][target]
        assert (single["name"], single["reached"]) == best_single(split_report["baselines"], "best@10")
        assert single["reached"] == max(
            scores["best@10"] for name, scores in split_report["baselines"].items() if name not in ("start", "random")
        )
        assert single["ahead"] == pytest.approx(single["reached"] - split_report["chosen"]["0"]["best@10"])


def test_a_learning_curve_has_a_value_for_every_set_of_sources_of_every_size() -> None:
    wide, cousin, narrow = tables(WIDE, COUSIN, NARROW)
    curve = learning_curve(cousin, [wide, narrow])
    assert {size: len(values) for size, values in curve.items()} == {"1": 2, "2": 1}
    assert all(0 < value <= 1 for values in curve.values() for value in values) and SUBSETS >= 2
