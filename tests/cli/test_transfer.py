"""`haotuner transfer` as a user runs it, on a store of made-up devices that have real profiles."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.app import run
from haotuner.cli.output import check_output_path
from haotuner.cli.transfer_input import known_device
from haotuner.errors import UnknownDevice
from haotuner.records.clblast import PARAMETERS
from haotuner.transfer.models_shipped import models_shipped
from tests.transfer.profile_store import store_of_profiles

pytestmark = pytest.mark.long

IDS = ("titan-rtx", "a4000", "rtx-3090")  # any ids of profiles: the records are of made-up CPU kernels


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_of_profiles(tmp_path_factory.mktemp("transfer") / "r.db", IDS)


def test_fit_writes_a_model_for_a_device_that_has_no_records(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert run(["transfer", "fit", "--db", db, "--target", "h200", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["mode"] == "zero-shot" and out.stat().st_size > 1000
    assert "no records of h200" in printed.err


def test_fit_refuses_a_target_on_which_the_kernels_do_not_run(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transfer", "fit", "--db", db, "--target", "xeon-8380", "--out", str(tmp_path / "model")]) == 2
    message = capsys.readouterr().err
    assert "its kernels do not run on xeon-8380, which is another kind of machine" in message
    assert not (tmp_path / "model").exists()


def test_a_host_whose_model_ships_is_known_by_its_id() -> None:
    model = models_shipped().models[0]
    assert known_device(model.device.id).id == model.device.id
    with pytest.raises(UnknownDevice, match="no-such-host"):
        known_device("no-such-host")


def test_a_host_of_a_shipped_model_that_was_not_measured_has_the_rates_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = models_shipped().models[0].device
    names = ("clock_mhz", "fma_pipes", "peak_gflops", "peak_gflops_unit", "memory_gbps", "memory_gbps_unit")
    rates: dict[str, Any] = dict.fromkeys(names)
    unmeasured = replace(shipped, sources={}, **rates)
    monkeypatch.setattr("haotuner.cli.transfer_input.find_device", lambda *_args, **_options: unmeasured)
    assert known_device(shipped.id) == shipped
    other = replace(unmeasured, id="cpu-of-no-model")
    monkeypatch.setattr("haotuner.cli.transfer_input.find_device", lambda *_args, **_options: other)
    assert known_device(other.id) == other


def test_a_family_that_the_store_has_not_is_refused_with_those_that_it_has(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", "a4000", "--out", str(tmp_path / "out")]
    assert run(["transfer", "fit", "--db", db, "--family", "nope", *words]) == 2
    assert "no records of --family nope; the store has cpu_dense_fp32" in capsys.readouterr().err


def in_the_way(folder: Path) -> dict[str, str]:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    os.mkfifo(folder / "pipe")
    return {
        **{"": "names no file", ".": "names no file", "/": "names no file"},
        **{str(folder / "folder"): "is a folder", str(folder / "pipe"): "is a device or a pipe"},
        **{str(folder / part / "x"): "there is no folder" for part in ("file", "none")},
        **{str(folder / ("n" * 300)): "File name too long", str(folder / ("n" * 252)): "File name too long"},
    }


def test_a_place_that_cannot_be_written_is_said_before_the_records_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = in_the_way(tmp_path)
    before = sorted(tmp_path.iterdir())
    for out, message in places.items():
        assert run(["transfer", "fit", "--db", "sqlite:////no/such/store.db", "--target", "a4000", "--out", out]) == 2
        err = capsys.readouterr().err
        assert "--out" in err and message in err
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "pipe").is_fifo()


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    for name in ("new", "old"):
        check_output_path(tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_verbose_says_what_was_read(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["transfer", "fit", "--db", db, "--target", "a4000", "--out", str(tmp_path / "model")]
    for more in ([], ["-v"], ["-v", "-q"]):
        assert run([*words, "--family", "cpu_dense_fp32", *more]) == 0
        err = capsys.readouterr().err
        assert ("cpu_dense_fp32 on titan-rtx: 280 rows of 2 tasks" in err) == (more == ["-v"])


def winners(folder: Path, *devices: str) -> str:
    """A table of CLBlast's best parameters on these devices."""
    best = dict(zip(PARAMETERS, (0, 1, 32, 2, 8, 8, 64, 8, 8, 64, 1, 1, 0, 0, 4, 4), strict=True))
    rows = [{"device": name, "vendor": "NVIDIA", "kind": "GPU", "architecture": "default", "best": best} for name in devices]
    path = folder / "xgemm.json"
    path.write_text(json.dumps({"kernel": "Xgemm", "parameters": list(PARAMETERS), "rows": rows}), encoding="utf-8")
    return str(path)


def test_winners_alone_are_a_source_and_what_is_left_out_of_them_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = winners(tmp_path, "GeForce GTX 970", "Mystery 9000"), tmp_path / "model"
    assert run(["transfer", "fit", "--winners", file, "--target", "l40s", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "shared on l40s, shared from no other device" in printed.out and "is not known" in printed.err
    assert "left out 1: " in printed.err and "devices of which too little is known" in printed.err
    assert out.stat().st_size > 1000


def test_a_fit_without_a_source_or_from_winners_of_nobody_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["transfer", "fit", "--target", "l40s", "--out", str(tmp_path / "model")]
    assert run(words) == 2 and "--db URL of a store, or --winners FILE" in capsys.readouterr().err
    assert run([*words, "--winners", winners(tmp_path, "Mystery 9000")]) == 2
    assert "not one winner of a GPU whose profile is known" in capsys.readouterr().err
    (tmp_path / "xgemm.json").write_text("no table")
    assert run([*words, "--winners", str(tmp_path / "xgemm.json")]) == 2 and "xgemm.json" in capsys.readouterr().err
    assert (
        run(["transfer", "fit", "--winners", winners(tmp_path, "GeForce GTX 970"), "--target", "xeon-8380", *words[4:]]) == 2
    )
    assert "winners are learned by the model of all families of GPUs alone" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
