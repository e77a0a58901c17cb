"""torch as a contender of a race of whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # torch warns of itself


class Weighed(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Rows by a weight, less those that a mask hides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: Any, mask: Any) -> Any:
        return torch.softmax(self.layer(x) * mask[..., None], 1)


@pytest.mark.long
def test_no_request_waits_for_torchs_compiler(tmp_path: Path) -> None:
    """Sizes are 1, equal and different; only what was warmed is compiled, and the names of inputs may be others."""
    from haotuner.bench.model_torch import CompiledProgram
    from haotuner.torch import export

    module = Weighed()
    export(module, (torch.ones(2, 3, 8), torch.ones(2, 3)), ({0: "b", 1: "t"},) * 2, out=tmp_path / "net.pt2")
    draw = np.random.default_rng(0)
    requests = [
        {"x": draw.standard_normal((b, t, 8), np.float32), "mask": draw.integers(0, 2, (b, t)).astype(np.float32)}
        for b, t in ((3, 3), (1, 5), (2, 7), (1, 9))
    ]
    try:
        program = CompiledProgram(str(tmp_path / "net.pt2"), torch.get_num_threads())
        program.warm(requests)
        with torch.compiler.set_stance("fail_on_recompile"):
            for feeds in requests:
                expected = module(torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["mask"])).detach().numpy()
                for inputs in (feeds, {"first": feeds["x"], "second": feeds["mask"]}, dict(reversed(feeds.items()))):
                    output = program.run(inputs)
                    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-6)
    finally:
        torch.set_flush_denormal(False)
        torch.compiler.reset()
