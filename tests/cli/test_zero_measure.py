"""`haotuner tune --zero-measure`: a pack from predictions alone, that says so wherever it is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner as package
from haotuner.errors import UsageError
from haotuner.pack.manifest import read_manifest
from haotuner.spec.op import Op
from haotuner.spec.traffic import arrivals_of
from haotuner.tuning import publisher, session
from haotuner.tuning.request import Request
from tests.cli.command import TINY, haotuner


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, Any]:
    """Folder with ``pack``, and the JSON that was printed."""
    folder = tmp_path_factory.mktemp("guessed")
    answer = haotuner("tune", *TINY, "--zero-measure", "--json", cache=cache, cwd=folder)
    assert answer.code == 3, answer.err
    return folder, answer.json()


def test_nothing_is_measured_and_the_report_says_so(guessed: tuple[Path, Any]) -> None:
    folder, document = guessed
    assert {p.name for p in folder.iterdir()} == {"pack"}, "there are no records"
    assert document["unverified"] is True and document["stopped"] == "zero-measure" and document["speed"] is None
    (op,) = document["ops"]
    assert op["measured"] == 0 and op["candidates"] > 0 and op["kernels"]


def test_manifest_inspect_and_explain_say_so(guessed: tuple[Path, Any], cache: Path) -> None:
    folder, _ = guessed
    manifest = read_manifest(folder / "pack")
    assert manifest.unverified and manifest.document["verification"]["numbers"] is True
    assert "unverified" in haotuner("inspect", "pack", cache=cache, cwd=folder).out
    words = ("explain", "pack", "--op", "dense_n48_k32", "--shape", "m=7")
    assert "unverified" in haotuner(*words, cache=cache, cwd=folder).out


def test_the_results_are_right_all_the_same(guessed: tuple[Path, Any]) -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((48, 32), dtype=np.float32), rng.standard_normal((21, 32), dtype=np.float32)
    with pytest.warns(UserWarning, match="nothing was measured"), package.load(guessed[0] / "pack") as pack:
        assert np.allclose(pack.op("dense_n48_k32").bind(weight)(x), x @ weight.T, atol=1e-4)


@pytest.mark.long
def test_a_host_that_cannot_run_an_absent_device_says_that_results_were_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "missing_flags", lambda arch: ("avx512f",))
    monkeypatch.setattr(publisher, "_verify", lambda *_: pytest.fail("the pack's code must not run here"))
    request = Request(ops=(Op.parse("dense:n=48,k=32"),), arrivals=arrivals_of("m=1..8"), device="xeon-8380", threads=(1,),
                      out=tmp_path / "pack", zero_measure=True)  # fmt: skip
    report = session.produce(request)
    assert not report.complete
    manifest = read_manifest(tmp_path / "pack")
    assert (manifest.device_id, manifest.arch, manifest.unverified) == ("xeon-8380", "x86-64-v4", True)
    assert manifest.document["verification"] == {"numbers": False, "why": "the host that built the pack lacks avx512f"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "w7800", "zero_measure": True}, "w7800 is of another kind"),
        ({"device": "xeon-8380"}, "--zero-measure"),
        ({"zero_measure": True, "resume": True}, "exclude each other"),
        ({"zero_measure": True, "model": "no-such-model.txt"}, "no-such-model.txt"),
    ],
)
def test_what_cannot_be_predicted_or_measured_is_a_usage_error(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    request = Request(ops=(Op.parse("dense:n=48,k=32"),), arrivals=arrivals_of("m=1..8"), out=tmp_path / "pack", **options)
    with pytest.raises(UsageError, match=message):
        session.produce(request)
    assert not list(tmp_path.iterdir())


def test_the_command_line_says_it_with_exit_2(cache: Path, tmp_path: Path) -> None:
    answer = haotuner("tune", *TINY, "--device", "w7800", "--zero-measure", cache=cache, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "") and "Traceback" not in answer.err
