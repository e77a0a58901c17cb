"""Tables of expected times: what is measured counts, the rest is predicted with the error of what was, bands are honest."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from haotuner.errors import HaotunerError
from haotuner.tuning.expected_times import MOST_BAND, PREDICTED_HIGH, TimedGrid, between_nodes, curve, table_of
from haotuner.tuning.plan_facts import model_contents
from haotuner.verify.model_times import main, times_apart, times_of
from tests.runtime.model_packs import model_pack
from tests.serve.nets import centred, rows

NAMES, SIZES = ("batch", "seq"), ((1, 2, 4), (1, 8, 64))
HELD_OUT = ({"batch": 3, "seq": 5}, {"batch": 1, "seq": 33})
GRID = TimedGrid(NAMES, SIZES, HELD_OUT)


def law(batch: float, seq: float) -> float:
    return 10 + 3 * batch * seq + 0.01 * batch * seq * seq


TRUE = np.array([law(*node) for node in product(*SIZES)])


def times(us: list[float]) -> list[list[float]]:
    return [[value] * 4 for value in us]


def test_measured_times_are_the_table_s() -> None:
    between = [law(**sizes) for sizes in HELD_OUT]
    table = table_of(GRID, 2, 7 * TRUE, times([*between, *TRUE]))
    assert table is not None and table.threads == 2
    np.testing.assert_allclose(table.us, TRUE)
    assert 0.8 < table.low <= 0.95 and 1.05 <= table.high < 1.3
    np.testing.assert_allclose(between_nodes(GRID, TRUE, HELD_OUT), between, rtol=0.2)


def test_what_was_not_timed_has_the_error_of_the_nearest_node_that_was() -> None:
    rows_ = [*times([law(**sizes) for sizes in HELD_OUT]), *times(list(2 * TRUE[:4])), *([[]] * 5)]
    table = table_of(GRID, 1, TRUE, rows_)
    assert table is not None
    np.testing.assert_allclose(table.us, 2 * TRUE)
    alone = table_of(GRID, 1, None, rows_)
    assert alone is not None and np.isfinite(alone.us).all() and min(alone.us) > 0


def test_predictions_alone_have_a_wide_band_and_nothing_known_is_no_table() -> None:
    table = table_of(GRID, 1, TRUE, None)
    assert table is not None and table.high == PREDICTED_HIGH
    np.testing.assert_allclose(table.us, TRUE)
    assert table_of(GRID, 1, None, None) is None
    assert table_of(GRID, 1, None, [[]] * 11) is None


def test_a_crowded_host_widens_no_band_beyond_reason() -> None:
    noisy = [[us, us, us, 50 * us] for us in [*(law(**sizes) for sizes in HELD_OUT), *TRUE]]
    table = table_of(GRID, 1, TRUE, noisy)
    assert table is not None and table.high == MOST_BAND


def test_a_curve_goes_through_work_of_products_of_sizes() -> None:
    requests = [{"batch": batch, "seq": seq} for batch, seq in ((1, 1), (4, 64), (1, 64), (4, 1), (2, 20), (3, 9), (1, 30))]
    expected = curve(NAMES, requests, np.array([law(**each) for each in requests]), [{"batch": 2, "seq": 50}])
    np.testing.assert_allclose(expected, law(2, 50), rtol=0.02)
    assert curve(NAMES, requests, np.zeros(7), requests).tolist() == [0.0] * 7


def test_requests_of_a_pack_are_timed_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = model_pack(tmp_path / "pack", {"rows": rows(), "centred": centred()})
    requests = {"rows": [{"batch": 1, "seq": 3}, {"batch": 4, "seq": 30}], "centred": [{"batch": 2}]}
    for expected in (times_of(pack, [1, 2], requests, 4.0), times_apart(pack, [1, 2], requests, 4.0, {})):
        assert {count: {name: len(each) for name, each in models.items()} for count, models in expected.items()} == {
            count: {"rows": 2, "centred": 1} for count in (1, 2)
        }
        assert all(min(us) > 0 for models in expected.values() for each in models.values() for us in each)
    assert times_apart(tmp_path / "none", [1], requests, 0.1, {}) == {}
    (tmp_path / "plan").write_text('{"threads": [1], "requests": {"rows": []}}')
    assert main(str(tmp_path), "0.1", str(tmp_path / "plan")) == 5
    assert "not a haotuner pack" in capsys.readouterr().err
    with pytest.raises(HaotunerError):
        times_of(pack, [1], {"other": [{}]}, 0.1)


@pytest.mark.parametrize("timed", [(), ({"threads": 1},)])
def test_contents_name_the_file_of_a_model_with_expected_times_and_without(timed: tuple[dict[str, int], ...]) -> None:
    def executable(name: str) -> Any:
        return SimpleNamespace(name=name, schedule=b"{}", bytecode=None, weights=b"")

    model: Any = SimpleNamespace(
        written=SimpleNamespace(name="net"), source_sha256="5e" * 32, subgraph=None,
        executables={"net": executable("net"), "net_1": executable("net_1")},
    )  # fmt: skip
    contents = model_contents([model], {"net": executable("net")} if timed else {})
    assert {name: content.source_sha256 for name, content in contents.items()} == {"net": "5e" * 32, "net_1": ""}
