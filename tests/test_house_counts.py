"""House rules that the sources do not keep yet: each number may only fall, until it is zero and a rule of its own."""

from __future__ import annotations

import ast
import json

import pytest

from tests import house_counts


def test_no_habit_becomes_more_common() -> None:
    most = json.loads(house_counts.FILE.read_text(encoding="utf-8"))
    now = house_counts.counts()
    assert set(now) == set(most), "the habits in the file are those that are counted: python -m tests.house_counts --write"
    more = [f"{name}: {now[name]}, at most {most[name]}" for name in now if now[name] > most[name]]
    assert not more, "\n".join(
        ["more than tests/golden/house_counts.json allows. Write the new code otherwise.",
         "After lowering a number run python -m tests.house_counts --write, so that it stays low.", *more]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("found = 1", 1),
        ("for one, place in x: pass", 2),
        ("def f(told, *, kept): pass", 2),
        ("[one for one in x]", 1),
        ("founds = x.found; print(found)", 0),
    ],
)
def test_names_are_counted_where_they_are_bound(source: str, count: int) -> None:
    assert sum(house_counts.node_binds(node) for node in ast.walk(ast.parse(source))) == count


def test_long_sentences_are_found_and_lists_are_not_one() -> None:
    long = "A kernel " + "and another " * 16 + "runs."
    assert [len(part.split()) > house_counts.MOST_WORDS for part in house_counts.sentences(f"Short. {long}")] == [
        False,
        True,
    ]
    listed = "Options:\n" + "\n".join(f"- number {at} of a long list of short lines" for at in range(9))
    assert not any(len(part.split()) > house_counts.MOST_WORDS for part in house_counts.sentences(listed))


@pytest.mark.parametrize(
    ("source", "count"), [("Op.parse(x)", 1), ("ast.parse(x)", 0), ("urllib.parse", 0), ("Op.parsed(x)", 0)]
)
def test_parses_of_our_classes_are_counted(source: str, count: int) -> None:
    assert sum(house_counts.is_parse(node) for node in ast.walk(ast.parse(source))) == count
