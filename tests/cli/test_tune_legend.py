"""The words under a table of results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.cli.tune import _legend


@pytest.mark.parametrize(
    "ratios, message",
    [
        ([1.0, 1.0], "packed weights take as much memory as plain ones"),
        ([1.25], "packed weights take 1.25 times the memory of plain ones"),
        ([4.1, 11.23, 5.0], "packed weights take 4.10 to 11.23 times the memory of plain ones"),
    ],
)
def test_memory_is_told_from_the_least_to_the_most(ratios: list[float], message: str) -> None:
    report: Any = SimpleNamespace(document={"ops": [{"packed_ratio": ratio} for ratio in ratios]})
    assert _legend(report).endswith(message)
