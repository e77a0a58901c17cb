"""`haotuner tune` of a module that torch.export saved."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner as api
from tests.cli.command import command, environment

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # torch warns of itself


class Scores(torch.nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, x: Any) -> Any:
        return torch.softmax(torch.log1p(x * x), -1)


@pytest.mark.long
def test_a_file_of_torch_export_is_tuned_like_any_model(cache: Path, tmp_path: Path) -> None:
    from haotuner.torch import export

    export(Scores(), (torch.ones(2, 24),), ({0: "rows"},), out=tmp_path / "scores.pt2")
    words = command("tune", "scores.pt2", "--shapes", "rows=1..16", "--out", "pack", "--zero-measure", "--threads", "1")
    # A process of its own: torch is imported as a user's command imports it.
    answer = subprocess.run(words, cwd=tmp_path, env=environment(cache), capture_output=True, text=True, check=False)
    assert answer.returncode == 3 and "unverified" in answer.stdout, answer.stderr
    inputs = np.linspace(-2, 2, 5 * 24, dtype=np.float32).reshape(5, 24)
    with api.load(tmp_path / "pack", threads=1) as pack:
        (output,) = pack.model("scores").run({"x": inputs}).values()
    np.testing.assert_allclose(output, Scores()(torch.from_numpy(inputs)).numpy(), rtol=1e-5, atol=1e-6)
