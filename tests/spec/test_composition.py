"""A composition is one value: its text and its label read back, its boxes cover the output once, a trial is made from it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.records.codec import trial_of
from haotuner.spec.composition import SERIAL, WAYS, WHOLE, Composition, Part, is_composition, share_in_words
from haotuner.spec.record import OpName, Trial
from haotuner.spec.shape import Shape

PARTS = st.builds(Part, st.from_regex(r"[a-z]{1,3}__mr[1-9]", fullmatch=True), st.integers(WHOLE, 10**6))
COMPOSITIONS = st.builds(Composition, st.lists(PARTS, min_size=1, max_size=3).map(tuple), st.sampled_from(tuple(WAYS)))


@given(COMPOSITIONS)
def test_its_label_reads_back_and_its_text_but_for_the_way_to_share(composition: Composition) -> None:
    assert Composition.parse(composition.label) == composition
    assert (
        Composition.parse(composition.text).parts == composition.parts and Composition.parse(composition.text).share == "n"
    )


@given(COMPOSITIONS, COMPOSITIONS)
def test_they_are_ordered_by_label(composition: Composition, other: Composition) -> None:
    assert (composition < other) == (composition.label < other.label)


def test_it_looks_as_records_have_it() -> None:
    composition = Composition((Part("a__mr8", 3), Part("b__mr1", 2)), SERIAL)
    assert (composition.text, composition.label, composition.tiles) == ("a__mr8*3+b__mr1*2", "a__mr8*3+b__mr1*2@serial", 5)
    assert Composition.of("a__mr8").text == "a__mr8" and Composition.of("a__mr8", 2).text == "a__mr8*2"


@pytest.mark.parametrize("text", ["", "a*", "a*0", "a*-1", "a*x", "*3", "a*3+", "a*3@", "a*3@N", "a*3@n@m", "a*1*2", "a*03"])
def test_a_text_that_is_none_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{re.escape(text)}' is no composition"):
        Composition.parse(text)


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40)), min_size=1, max_size=3), st.integers(1, 99))
def test_boxes_lie_behind_each_other_along_the_covered_axis(sizes: list[tuple[int, int]], n: int) -> None:
    rows = {f"k{at}": height for at, (height, _) in enumerate(sizes)}
    composition = Composition(tuple(Part(f"k{at}", tiles) for at, (_, tiles) in enumerate(sizes)))
    m = sum(height * tiles for height, tiles in sizes)
    for along, extents in (("m", {"m": m, "n": n}), ("b", {"n": n, "b": m})):
        boxes = composition.boxes(rows.__getitem__, extents, along)
        ends = [region.box[along] for region in boxes]
        assert [last - first for first, last in ends] == [height * tiles for height, tiles in sizes]
        assert ends[0][0] == 0 and ends[-1][1] == m and all(a[1] == b[0] for a, b in zip(ends, ends[1:], strict=False))
        assert all(region.box["n"] == (0, n) for region in boxes)
    assert composition.boxes(rows.__getitem__, {"m": m, "n": n}) == composition.boxes(
        rows.__getitem__, {"m": m, "n": n}, "m"
    )


@pytest.mark.parametrize(("share", "words"), [("k", "threads share terms of the sum"), ("b", "threads share axis b")])
def test_every_way_to_share_has_words(share: str, words: str) -> None:
    assert share_in_words(Composition.parse(f"a*1@{share}").share) == words


def test_one_kernel_by_itself_is_told_from_regions() -> None:
    assert not is_composition("a__mr8") and is_composition("a__mr8*3") and is_composition("a*1+b*2")


def test_a_whole_kernel_covers_all_there_is() -> None:
    (region,) = Composition.of("a").boxes({"a": 8}.__getitem__, {"m": 37, "n": 5})
    assert region.box == {"m": (0, 37), "n": (0, 5)}


@given(COMPOSITIONS, st.integers(2, 8), st.sampled_from(("cold", "hot")), st.integers(0, 3))
def test_a_trial_is_made_from_one_and_gives_it_back(composition: Composition, threads: int, cache: str, repeat: int) -> None:
    trial = Trial.of(OpName("op"), composition, Shape.of(m=7), threads=threads, cache=cache, repeat=repeat)
    assert trial.composition == composition and (trial.weights, trial.repeat, trial.kernel) == (
        cache,
        repeat,
        composition.text,
    )
    assert trial.threads == (1 if composition.share == SERIAL else threads)


def test_what_one_thread_computes_is_one_record_whatever_the_number_of_threads() -> None:
    """Its key has no word of it: records from before there were any ways to share are the same."""
    alone = Trial.of(OpName("op"), Composition.of("a", 2, SERIAL), Shape.of(m=2), threads=4)
    assert alone == trial_of(op="op", kernel="a*2", shape=Shape.of(m=2)) and alone.split == "n"
