"""Scattered pages are taken before contenders start and given back after them."""

from __future__ import annotations

import mmap

import pytest

from haotuner.bench import machine_load
from haotuner.bench.machine_load import MORE, SCATTERED_ORDERS, ScatteredPages, scattered_bytes

TABLE = """Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal      8      4      2      1      0      0      9      9      9      9   9999
Node 1, zone   Normal      1      0      0      0      0      0      0      0      0      0      0
"""


def test_only_small_blocks_count() -> None:
    assert SCATTERED_ORDERS == 6
    assert scattered_bytes(TABLE) == (8 + 2 * 4 + 4 * 2 + 8 * 1 + 1) * mmap.PAGESIZE
    assert scattered_bytes("") == 0


def test_it_is_held_inside_and_gone_after(tmp_path) -> None:
    table = tmp_path / "buddyinfo"
    table.write_text(TABLE)
    with ScatteredPages(table) as pages:
        assert pages._mapping is not None and len(pages._mapping) == int(scattered_bytes(TABLE) * MORE)
    assert pages._mapping is None


@pytest.mark.parametrize("text", [None, "Node 0, zone Normal one two", "", "Node 0, zone Normal 0 0 0 0 0 0 7"])
def test_where_nothing_is_known_or_scattered_nothing_is_held(tmp_path, text) -> None:
    table = tmp_path / "buddyinfo"
    if text is not None:
        table.write_text(text)
    with ScatteredPages(table) as pages:
        assert pages._mapping is None


def test_no_more_than_a_share_of_free_memory_is_held(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "buddyinfo"
    table.write_text("Node 0, zone Normal 999999999 0 0 0 0 0 0")
    monkeypatch.setattr(machine_load, "available_bytes", lambda: 64 * mmap.PAGESIZE)
    with ScatteredPages(table) as pages:
        assert pages._mapping is not None and len(pages._mapping) == 8 * mmap.PAGESIZE
