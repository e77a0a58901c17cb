"""A report of a million records: its memory and its file stay small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.report_size import RECORDS, fill, measured
from tests.cli.test_report import needs_plotly


@needs_plotly
@pytest.mark.slow
def test_a_million_records_make_a_small_file(tmp_path: Path) -> None:
    fill(tmp_path / "r.db", RECORDS)
    figures = measured(tmp_path / "r.db", tmp_path / "report.html")
    assert figures.within, figures
