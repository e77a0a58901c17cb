"""CLBlast's best-known parameters: what is a winner, what is left out, and the command on a folder."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.clblast import PARAMETERS, is_tuner_file, is_winners, is_winners_file, kernel_of, read_winners
from haotuner.records.importing import Loaded, load_kernel_tuner
from tests.bench.transfer_study.__main__ import main

BEST = dict(zip(PARAMETERS, (0, 1, 32, 2, 8, 8, 64, 8, 8, 64, 1, 1, 0, 0, 4, 4), strict=True))


def row(device: str, vendor: str = "NVIDIA", architecture: str = "SM5.2", **best: object) -> dict[str, Any]:
    return {"device": device, "vendor": vendor, "kind": "GPU", "architecture": architecture, "best": {**BEST, **best}}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "xgemm.json"
    content = {"source": "made up", "kernel": "Xgemm", "parameters": list(PARAMETERS), "rows": list(rows)}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_row_is_a_winner_of_a_device_as_far_as_it_is_known(tmp_path: Path) -> None:
    adreno = row("QUALCOMM Adreno(TM)", "QUALCOMM", "OpenCL C 2.0 Adreno(TM) 640")
    table = read_winners(written(tmp_path, row("GeForce GTX 970"), adreno, row("Mystery 9000", "Imagination", "default")))
    assert [winner.device.id for winner in table.winners] == ["gtx-970", "adreno-640", "mystery-9000"]
    assert table.winners[0].values == tuple(BEST.values())
    assert table.vendors() == ("imagination", "nvidia", "qualcomm")
    assert table.winners[2].device.facts == {} and table.notes == ("1 devices of which nothing but the name is known",)


@pytest.mark.long
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (row("GeForce GTX 970", MWG=48), "not in the space"),
        (row("GeForce GTX 970", MWG="64"), "without all sixteen parameters"),
        ({"device": "GeForce GTX 970"}, "without all sixteen parameters"),
        ("GeForce GTX 970", "without a device"),
        (row("GeForce GTX 980", VWN=2), "a second row of GeForce GTX 980 with other parameters"),
    ],
)
def test_rows_that_cannot_be_used_are_counted(tmp_path: Path, odd: object, reason: str) -> None:
    table = read_winners(written(tmp_path, row("GeForce GTX 980"), odd))
    assert len(table.winners) == 1 and [text for text in table.left_out if reason in text]


def test_half_a_download_and_no_winner_at_all_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, row("GeForce GTX 970"))
    path.write_text(path.read_text()[:-40])
    assert is_winners(path.read_text())
    with pytest.raises(UsageError, match="half a download"):
        read_winners(path)
    with pytest.raises(UsageError, match="not one usable winner: best parameters that are not in the space"):
        read_winners(written(tmp_path, row("GeForce GTX 970", MWG=48)))


def test_the_command_says_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["winners", "--data", str(tmp_path)]) == 2
    assert "holds no table of best-known parameters" in capsys.readouterr().err
    written(tmp_path, row("GeForce GTX 970"), row("GeForce GTX 980", MWG=48))
    assert main(["winners", "--data", str(tmp_path)]) == 2
    assert (
        "winners of two vendors are needed, found nvidia" in (message := capsys.readouterr().err) and "left out 1" in message
    )


def header(tmp_path: Path, *rows: str, kernel: str = "Xgemm", names: str = "", precision: str = "Single") -> Path:
    """A header of CLBlast's database, of one architecture."""
    known = names or ", ".join(f'"{name}"' for name in PARAMETERS[2:])
    lines = [
        "namespace clblast {", "namespace database {",
        f"const DatabaseEntry {kernel}{precision} = {{",
        f'  "{kernel}", Precision::k{precision}, {{{known}}}, {{',
        "    { // NVIDIA GPUs", '      kDeviceTypeGPU, "NVIDIA", {', '        { "SM5.2", {',
        *rows,
        "        } },", "      }", "    },", "  }", "};", "} // namespace database", "} // namespace clblast",
    ]  # fmt: skip
    path = tmp_path / "xgemm_32.hpp"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GTX_970 = '          { Name{"GeForce GTX 970                   "}, Params{ 32, 2, 8, 8, 64, 8, 8, 64, 1, 1, 0, 0, 4, 4 } },'
DEFAULT = "          { kDeviceNameDefault                       , Params{ 16, 2, 8, 8, 32, 8, 8, 64, 1, 1, 0, 0, 4, 4 } },"


def test_the_header_that_clblast_compiles_says_the_same_as_the_table(tmp_path: Path) -> None:
    path = header(tmp_path, GTX_970, DEFAULT)
    assert is_winners_file(path)
    (winner,) = read_winners(path).winners
    assert winner == read_winners(written(tmp_path, row("GeForce GTX 970"))).winners[0]
    assert kernel_of(winner).name.startswith("clblast_xgemm__mwg64_nwg64_kwg32")


def test_a_header_that_is_cut_or_of_another_kernel_is_refused(tmp_path: Path) -> None:
    path = header(tmp_path, GTX_970)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UsageError, match="cut, or of another form"):
        read_winners(path)
    for kernel, precision in (("Xgemv", "Single"), ("Xgemm", "Double")):
        with pytest.raises(UsageError, match=f"best parameters of Xgem. in {precision} precision|best parameters of Xgemv"):
            read_winners(header(tmp_path, GTX_970, kernel=kernel, precision=precision))


def result(time: object, **parameters: object) -> dict[str, object]:
    return {"kernel": "Xgemm", "time": time, "parameters": {**BEST, "PRECISION": 32, **parameters}}


def tuner(tmp_path: Path, *results: object, **other: object) -> Path:
    """A file as CLBlast's tuner writes it."""
    head = {"kernel_family": "xgemm_1", "precision": "32", "arg_m": "1024", "arg_n": "1024", "arg_k": "512"}
    device = {"clblast_device_name": "GeForce GTX 970", "device": "GeForce GTX 970"}
    path = tmp_path / "clblast_xgemm_1_32.json"
    path.write_text(json.dumps({**head, **device, **other, "results": list(results)}), encoding="utf-8")
    return path


def load(path: Path) -> Loaded:
    return load_kernel_tuner(path, find_device=partial(find_device, measure=False))


def test_a_tuner_s_timings_become_records_of_both_kernels(tmp_path: Path) -> None:
    direct = {"GEMMK": 1, "KREG": 4, "KWG": 1, "KWI": 1}
    path = tuner(tmp_path, result(2.5), result(3.5, MWG=128), result(4.0, **direct))
    assert is_tuner_file(path) and not is_winners_file(path)
    loaded = load(path)
    assert loaded.mapping == "xgemm" and not loaded.refused
    assert {record.device_id for record in loaded.records} == {"gtx-970"}
    assert [record.outcome.median_us for record in loaded.records] == [2500.0, 3500.0, 4000.0]  # type: ignore[union-attr]
    assert {record.trial.op.name for record in loaded.records} == {"dense_n1024_k512"}
    assert "_kwg4_" in loaded.records[2].trial.kernel and "_sa0_sb0" in loaded.records[2].trial.kernel


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (result(float("nan")), "not a finite number"),
        (result(0.0), "zero or negative"),
        (result("2.5"), "a number in quotes"),
        (result(2.5, MWG=None), "parameter MWG is missing"),
        (result(2.5, PRECISION=3232), "PRECISION 3232"),
        (result(2.5e-4), "faster than gtx-970 can be"),
        ({"time": 2.5}, "without parameters"),
    ],
)
def test_a_tuner_s_bad_results_are_counted(tmp_path: Path, odd: object, reason: str) -> None:
    loaded = load(tuner(tmp_path, result(2.5), odd))
    assert len(loaded.records) == 1 and [text for text in loaded.refused if reason in text]


def test_a_tuner_s_file_of_another_kernel_or_device_or_half_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="timings of CLBlast's xgemv; known is xgemm"):
        load(tuner(tmp_path, result(2.5), kernel_family="xgemv"))
    with pytest.raises(UnknownDevice, match="Mystery 9000"):
        load(tuner(tmp_path, result(2.5), clblast_device_name="Mystery 9000"))
    with pytest.raises(UsageError, match="half of it.*arg_m"):
        load(tuner(tmp_path, result(2.5), arg_m="many"))
    path = tuner(tmp_path, result(2.5))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(UsageError, match="half of it"):
        load(path)
