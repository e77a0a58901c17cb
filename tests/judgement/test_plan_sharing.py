"""Which ways of sharing a call are worth timing, and up to how many rows the runtime takes them."""

from __future__ import annotations

import re

import pytest

from haotuner.compile.cpu import RUNTIME_SOURCES
from haotuner.composition import SPLITS
from haotuner.op import Op
from haotuner.plan.sharing import PART_TERMS, PARTIAL_FLOATS, rows_of, ways


def test_one_thread_shares_nothing() -> None:
    assert ways(Op.parse("dense_n8_k8192"), 1) == ("serial",)


@pytest.mark.parametrize(
    ("op", "threads", "terms"),
    [
        ("dense_n8_k4096", 2, True),
        ("dense_n127_k512", 2, True),
        ("dense_n128_k4096", 2, False),  # two panels a thread
        ("dense_n256_k4096", 16, True),  # 16 columns a thread
        ("dense_n8_k511", 2, False),  # no two parts of 256 terms
        ("dense_n4096_k4096", 64, False),
    ],
)
def test_terms_are_shared_where_columns_are_few_and_the_sum_is_long(op: str, threads: int, terms: bool) -> None:
    assert ("k" in ways(Op.parse(op), threads)) is terms
    assert "k" not in ways(Op.parse(op), threads, one_order=True)
    assert {"n", "m", "serial"} <= set(ways(Op.parse(op), threads)) <= set(SPLITS)


def test_partial_sums_fit_the_callers_stack() -> None:
    op = Op.parse("dense_n96_k4096")
    for threads in (2, 3, 16, 64):
        rows = rows_of("k", op, threads, 8192)
        parts = min(threads, 4096 // PART_TERMS)
        assert (parts - 1) * rows * 96 <= PARTIAL_FLOATS < (parts - 1) * (rows + 1) * 96
    assert rows_of("k", Op.parse("dense_n8_k4096"), 2, 100) == 100
    assert rows_of("n", op, 2, 8192) == 8192


def test_the_runtime_has_the_same_limits() -> None:
    source = (RUNTIME_SOURCES / "run.c").read_text()
    defined = {name: int(value) for name, value in re.findall(r"#define HT_(\w+) (\d+)\b", source)}
    assert (defined["PARTIAL_FLOATS"], defined["PART_TERMS"]) == (PARTIAL_FLOATS, PART_TERMS)
    order = re.search(
        r"enum \{ HT_SERIAL = 0, HT_COLUMNS = 1, HT_ROWS = 2, HT_TERMS = 3 \}", (RUNTIME_SOURCES / "ht.h").read_text()
    )
    assert order and SPLITS == ("serial", "n", "m", "k")
