"""The curve of tuning from a model and from cold, on recorded times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from haotuner.cli.app import run as haotuner
from haotuner.cost.features import NAMES, features
from haotuner.cost.forest import Forest
from haotuner.transfer.saved_model import save_model
from tests.bench.own_records import FOLDER
from tests.bench.transfer_study.__main__ import main
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS

FILE = FOLDER / "cpu-amd-epyc-f25m17-avx512.json"


def test_an_op_that_was_not_timed_twice_has_no_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
    save_model(Forest().fit(frame[list(NAMES)], np.asarray(frame["expected_log"])), tmp_path / "model")
    words = ["curve", "--model", str(tmp_path / "model"), "--records", str(FILE), "--op", "dense_n7_k7"]
    assert main(words) == 2
    assert "0 kernels of dense_n7_k7 that were timed twice; a curve needs 100" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_two_neighbours_needs_fewer_measurements_than_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, model = f"sqlite:///{tmp_path / 'r.db'}", str(tmp_path / "model")
    neighbours = [str(FOLDER / f"cpu-amd-epyc-{name}.json") for name in ("f26m2-avx512", "f25m17-avx2")]
    assert haotuner(["records", "import", *neighbours, "--db", db, "-q"]) == 0
    assert haotuner(["transfer", "fit", "--db", db, "--target", FILE.stem, "--out", model]) == 0
    capsys.readouterr()
    assert main(["curve", "--model", model, "--records", str(FILE)]) == 0
    printed = capsys.readouterr().out
    assert "| cold | 0.5" in printed, "after eight timings"
    factor = float(printed.rsplit("from the model ", 1)[1].partition("x")[0])
    assert factor > 1.2
