"""CLBlast's best-known parameters: what is a winner, what is left out, and the command on a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.records.clblast import PARAMETERS, is_winners, read_winners
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
    assert len(table.winners) == 1 and [found for found in table.left_out if reason in found]


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
    assert "winners of two vendors are needed, found nvidia" in (said := capsys.readouterr().err) and "left out 1" in said
