"""The model that kernels of any family share: what it learns, who judges it, where it is refused, and what ships."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from haotuner.cost.forest import Forest
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.table import known_named, stranger
from haotuner.records.clblast import PARAMETERS, Winner, Winners, xgemm_space
from haotuner.records.timings import load_timings
from haotuner.records.winners import FAMILY, LEAD, RIVALS, winner_tables
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.fit import fit_model
from haotuner.transfer.reading import DeviceTables, read_records
from haotuner.transfer.saved_model import load_model, save_model
from haotuner.transfer.shared_model import (
    COLUMNS,
    CPU_COLUMNS,
    CPUS,
    GAIN,
    SHARE,
    SHARES,
    Verdict,
    chosen_share,
    facts_of,
    fit_shared,
    held_out,
    judged_tasks,
    shipped_file,
    verdict_on,
    verdicts,
)
from haotuner.tuning.initial_model import Starts, start_of
from tests.bench.own_records import FOLDER
from tests.bench.shared_models import needed
from tests.transfer.transfer_examples import COUSIN, WIDE, tables

device_of = partial(find_device, measure=False)
H200, L40S = device_of("h200"), device_of("l40s")


@pytest.fixture(scope="module")
def measured() -> list[DeviceTable]:
    """An H200's tables of every family, and the same as if another device had measured them."""
    records = load_timings(FOLDER / "cuda" / "h200.json", find_device=device_of).records
    return read_records(records, device_of).tables


@pytest.fixture(scope="module")
def two_devices(measured: list[DeviceTable]) -> list[DeviceTable]:
    """Tables of two devices on which staging costs 0.4 log units beyond the roofline a doubling of the tile's rows."""
    changed = []
    for device in (H200, L40S):
        for table in measured:
            labels = np.asarray(table.frame["expected_log"] - 0.4 * table.frame["tile_rows_log2"], np.float64)
            changed.append(replace(table, device=device, labels=labels))
    return changed


def test_no_feature_names_a_device_and_every_one_is_computed() -> None:
    assert not {"units_log2", "balance_log2", "flags", "exposed_share"} & set(COLUMNS)
    assert {"waves_log2", "register_fill", "spill_ratio", "far_balance_log2", "loads_per_fma", "expected_log"} <= set(
        COLUMNS
    )


def test_what_the_roofline_gets_wrong_carries_over_to_a_device_that_was_held_out(
    two_devices: list[DeviceTable],
) -> None:
    left_out = held_out(two_devices, lambda table: table.device.id)
    assert {item.table.device.id for item in left_out} == {"h200", "l40s"}
    judged = verdicts(left_out, lambda item: item.table.family)
    assert judged["cuda_simt_fp32"].beats and judged["cuda_simt_fp32"].model > 0.9 > judged["cuda_simt_fp32"].roofline
    assert judged["cuda_simt_fp32"].spread < 0.3


def test_the_roofline_keeps_the_level(two_devices: list[DeviceTable]) -> None:
    forest = fit_shared([replace(table, labels=table.labels - 3.0) for table in two_devices])
    table = two_devices[0]
    assert forest.line == (0.0, 1.0)
    assert abs(np.mean(forest.predict(table.frame) - table.frame["expected_log"])) < 0.3


def test_one_device_alone_is_judged_by_nobody(measured: list[DeviceTable]) -> None:
    assert held_out(measured, lambda table: table.device.id) == []
    assert chosen_share([]) == SHARE


def test_the_share_of_a_table_is_chosen_on_other_families_of_other_devices(two_devices: list[DeviceTable]) -> None:
    left_out = held_out(two_devices, lambda table: table.device.id)
    judge = left_out[0].table
    others = [item for item in left_out if item.table.family != judge.family and item.table.device.id != judge.device.id]
    spoiled = [
        item if item in others else replace(item, picks=dict.fromkeys(item.picks, np.zeros((1, 2)))) for item in left_out
    ]
    assert chosen_share(spoiled, judge) == chosen_share(left_out, judge) == chosen_share(others)
    assert chosen_share(others) in SHARES


def verdict(model: float, roofline: float = 0.9) -> Verdict:
    return Verdict(
        roofline=roofline,
        model=model,
        worst_roofline=0.5,
        worst_model=0.5,
        roofline_10=1.0,
        model_10=1.0,
        spread=0.14,
        tasks=9,
    )


def test_a_start_says_sources_and_certainty_and_refuses_where_the_roofline_ranks_as_well(
    measured: list[DeviceTable], tmp_path: Path
) -> None:
    forest = fit_shared(measured)
    judged = {"cuda_simt_fp32": verdict(0.9 + 2 * GAIN), "cuda_mma_bf16": verdict(0.9 + GAIN / 2)}
    forest.facts = facts_of(measured, judged, 0.5)
    save_model(forest, tmp_path / "model")
    starts = Starts(str(tmp_path / "model"), L40S)
    good, refused, unknown = (starts.of(name) for name in ("cuda_simt_fp32", "cuda_mma_bf16", "cuda_conv_fp32"))
    assert good.model is not None and "h200; l40s is not among them" in good.words and "off by 14%" in good.words
    assert (
        refused.model is None and "is not used for cuda_mma_bf16" in refused.words and "from the roofline" in refused.words
    )
    assert unknown.model is not None and "is not known" in unknown.words, "a model that the user names is used"
    with pytest.raises(UsageError, match="ranks shared kernels"):
        start_of(str(tmp_path / "model"), device_of("xeon-8380"), "cpu_dense_fp32")


def test_a_fit_of_several_families_is_shared_and_says_how_well_it_ranks(
    two_devices: list[DeviceTable], tmp_path: Path
) -> None:
    fitted = fit_model(DeviceTables(tables=two_devices), device_of("a4000"))
    assert fitted.mode == "shared" and fitted.sources == ("h200", "l40s") and fitted.rows == 0
    assert "devices held out" in fitted.note and "cuda_simt_fp32" in fitted.note and isinstance(fitted.model, Forest)
    save_model(fitted.model, tmp_path / "model")
    known = verdict_on(load_model(tmp_path / "model").facts, "cuda_simt_fp32")
    assert known is not None and known.beats
    with pytest.raises(UsageError, match="several families.*--family"):
        fit_model(DeviceTables(tables=two_devices), device_of("xeon-8380"))


def test_the_shipped_model_is_of_today_s_features_and_starts_a_gpu_that_nobody_measured() -> None:
    facts = load_model(shipped_file()).facts
    known = verdict_on(facts, "cuda_simt_fp32")
    assert known is not None and known.beats and "l40s" not in facts["sources"] and "h200" in facts["sources"]
    start = start_of(None, L40S, "cuda_simt_fp32")
    assert start.model is not None and "the shared model of GPUs" in start.words and f"{known.roofline:.3f}" in start.words
    assert start_of(None, L40S, "cuda_mma_bf16").model is None
    assert "no device with such kernels" in start_of(None, L40S, "cuda_conv_fp32").words


def winner(device: str, at: int) -> Winner:
    known = known_named(device) or stranger(device, vendor="", on_cpu=False)
    return Winner(device=known, values=tuple(xgemm_space()[at].tolist()))


def test_a_winner_s_table_is_the_roofline_s_order_with_the_winner_first() -> None:
    tables = winner_tables(Winners(winners=(winner("gtx-980", 40_000), winner("Mystery 9000", 5), winner("gtx-970", 9))))
    assert [table.device.id for table in tables.tables] == ["gtx-980", "gtx-970"]
    assert sum(tables.left_out.values()) == 1, "a device of which nothing is known teaches nothing"
    table = tables.tables[0]
    prior = table.frame["expected_log"].to_numpy()
    assert table.family == FAMILY and RIVALS - 30 < len(table) <= RIVALS + 1
    assert table.labels[0] == table.labels.max() == prior.max() + LEAD and np.array_equal(table.labels[1:], prior[1:])
    assert not judged_tasks(table), "nobody is judged by what was not timed"


def untimed(measured: list[DeviceTable], slope: float) -> list[DeviceTable]:
    """Tables of another device, as if winners said what a doubling of the tile's rows costs."""
    return [
        replace(table, device=device_of("a4000"), family=FAMILY, timed=False,
                labels=np.asarray(table.frame["expected_log"] - slope * table.frame["tile_rows_log2"], np.float64))
        for table in measured
    ]  # fmt: skip


def test_winners_are_used_if_held_out_devices_rank_better_for_them_and_it_is_said(
    two_devices: list[DeviceTable], measured: list[DeviceTable]
) -> None:
    alone = [table for table in two_devices if table.device.id == "h200"]
    fitted = fit_model(DeviceTables(tables=alone), L40S, winners=untimed(measured, 0.4))
    assert "CLBlast's winners on 1 devices are used" in fitted.note and fitted.model.facts["winners"] == 1
    assert fitted.sources == ("h200",), "sources are devices with times"
    fitted = fit_model(DeviceTables(tables=alone), L40S, winners=untimed(measured, -0.4))
    assert "CLBlast's winners on 1 devices are left out" in fitted.note and fitted.model.facts["winners"] == 0


def test_winners_alone_make_a_model_that_nobody_judged() -> None:
    winners = winner_tables(Winners(winners=(winner("gtx-980", 40_000),))).tables
    fitted = fit_model(DeviceTables(), L40S, winners=winners)
    assert fitted.mode == "shared" and fitted.sources == () and "not known" in fitted.note


def test_winners_for_a_cpu_or_beside_a_family_are_refused(measured: list[DeviceTable]) -> None:
    winners = winner_tables(Winners(winners=(winner("gtx-980", 40_000),))).tables
    for target, family in ((device_of("xeon-8380"), None), (L40S, "cuda_simt_fp32")):
        with pytest.raises(UsageError, match="winners are learned by the model of all families of GPUs alone"):
            fit_model(DeviceTables(tables=measured), target, family=family, winners=winners)
    assert len(PARAMETERS) == xgemm_space().shape[1]


def test_cpus_have_a_shared_model_of_their_own() -> None:
    assert set(CPU_COLUMNS) - set(COLUMNS) == {"streams", "ahead_lines_log2", "fetched", "exposed_share"}
    facts = load_model(shipped_file(CPUS)).facts
    assert facts["machine"] == CPUS and all(source.startswith("cpu-") for source in facts["sources"])


def test_an_order_is_worth_the_kernels_that_it_takes_to_come_within_two_percent() -> None:
    (table,) = tables(WIDE)
    shapes = judged_tasks(table)
    assert needed(table.labels, table, shapes[:1]) == 1, "the truth needs one kernel of one shape"
    assert needed(-table.labels, table, shapes[:1]) > len(table) // 4
    assert 1 <= needed(table.labels, table, shapes) < needed(-table.labels, table, shapes)


def test_a_cpu_of_another_host_is_judged_by_hosts_that_were_held_out() -> None:
    facts = load_model(shipped_file(CPUS)).facts
    here = device_of("xeon-8380")
    sources = sorted(facts["sources"])
    near = replace(here, id=f"{sources[0].rpartition('-')[0]}-other")
    family = "cpu_batch_matmul_fp32"
    inside, elsewhere = verdict_on(facts, family, near), verdict_on(facts, family, here)
    assert inside is not None and elsewhere is not None
    assert inside.beats and not elsewhere.beats, "another instruction set of a measured host gains, another host does not"
    start = start_of(None, here, family)
    assert start.model is None and f"the shared model of CPUs is not used for {family}" in start.words
    start = start_of(None, near, family)
    assert start.model is not None and "from the shared model of CPUs" in start.words
    assert "no device with such kernels" in start_of(None, here, "cpu_online_softmax").words


def test_a_store_of_several_families_of_cpus_is_fitted_as_one_model_of_cpus(
    measured: list[DeviceTable], tmp_path: Path
) -> None:
    dense = tables(WIDE, COUSIN)
    read = DeviceTables(tables=[*dense, *(replace(table, family="cpu_batch_matmul_fp32") for table in dense), *measured])
    fitted = fit_model(read, device_of("xeon-8380"))
    assert fitted.mode == "shared" and fitted.sources == ("cousin", "wide"), "GPUs of the store are no sources of a CPU"
    save_model(fitted.model, tmp_path / "model")
    assert load_model(tmp_path / "model").facts["machine"] == CPUS
    start = start_of(str(tmp_path / "model"), device_of("xeon-8380"), "cpu_dense_fp32")
    assert "the model" in start.words and "2 devices (cousin, wide; xeon-8380 is not among them)" in start.words
    with pytest.raises(UsageError, match="ranks shared kernels"):
        start_of(str(tmp_path / "model"), L40S, "cuda_simt_fp32")
