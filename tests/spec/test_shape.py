"""Shapes, ranges and their grammar."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.errors import UsageError
from haotuner.spec.shape import AXIS_LIMIT, DYNAMIC, Shape, ShapeRange, Span
from haotuner.spec.traffic import Traffic

extents = st.integers(1, AXIS_LIMIT)
axes = st.from_regex(r"[a-z]{1,3}", fullmatch=True)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    if draw(st.booleans()):
        listed = tuple(sorted(draw(st.sets(extents, min_size=1, max_size=5))))
        return Span(first=listed[0], last=listed[-1], listed=listed)
    first, last = sorted((draw(extents), draw(extents)))
    return Span(first=first, last=last, step=draw(st.integers(1, 1000)))


@st.composite
def ranges(draw: st.DrawFn) -> ShapeRange:
    names = draw(st.lists(axes.filter(lambda a: a != "dynamic"), min_size=1, max_size=4, unique=True))
    own = names[: draw(st.integers(1, len(names)))]
    tied = tuple((name, draw(st.sampled_from(own))) for name in names[len(own) :])
    return ShapeRange(spans=tuple((name, draw(spans())) for name in own), tied=tied)


@given(ranges())
def test_a_range_parses_back_from_its_text(range_):
    assert ShapeRange.parse(str(range_)) == range_


@given(ranges(), st.integers(2, 40))
def test_traffic_over_a_range_lies_in_it_and_its_weights_sum_to_one(range_, samples):
    samples = min(samples, 6 if len(range_.spans) > 2 else 40)
    traffic = Traffic.of_range(range_, samples)
    assert math.isclose(sum(weight for _, weight in traffic), 1.0, rel_tol=1e-9)
    assert all(shape in range_ for shape in traffic.shapes())
    assert all(weight >= 0 and math.isfinite(weight) for _, weight in traffic)
    assert len(set(traffic.shapes())) == len(traffic)


@given(spans(), st.integers(2, 60))
def test_a_sample_holds_both_ends_and_only_extents_of_the_span(span, count):
    sample = span.sample(count)
    assert sample[0] == span.first
    assert sample[-1] == span.first + (len(span) - 1) * span.step if not span.listed else sample == span.listed
    assert all(extent in span for extent in sample)
    assert list(sample) == sorted(set(sample))
    assert len(sample) <= max(count, len(span.listed))


@given(st.dictionaries(axes, st.integers(0, AXIS_LIMIT), max_size=4))
def test_a_shape_gives_its_extents_back_in_any_order(extents_):
    shape = Shape.of(extents_)
    assert shape == Shape.of(dict(reversed(extents_.items())))
    assert shape.as_dict() == extents_
    assert all(shape[axis] == extent for axis, extent in extents_.items())
    assert hash(shape) == hash(Shape.of(**extents_))


@pytest.mark.parametrize(
    "text, first, last, count",
    [
        ("dynamic", 1, 2048, 2048),
        (DYNAMIC, 1, 2048, 2048),
        ("m=1..4096", 1, 4096, 4096),
        ("m=1,2,4", 1, 4, 3),
        ("m=4, 2 ,1,2", 1, 4, 3),
        ("m=8..512:8", 8, 512, 64),
        ("m=1..10:4", 1, 10, 3),
        (" m = 7 ", 7, 7, 1),
        ("m=7..7", 7, 7, 1),
        (f"m=1..{AXIS_LIMIT}", 1, AXIS_LIMIT, AXIS_LIMIT),
        ("m=007", 7, 7, 1),
    ],
)
def test_the_grammar_reads(text, first, last, count):
    span = ShapeRange.parse(text).span("m")
    assert (span.first, span.last, len(span)) == (first, last, count)


def test_axes_follow_each_other():
    range_ = ShapeRange.parse("m=1..128;n=m;b=192")
    assert range_.axes() == ("m", "b", "n")
    assert range_.span("n") == range_.span("m")
    assert Shape.of(m=5, n=5, b=192) in range_
    assert Shape.of(m=5, n=6, b=192) not in range_
    assert Shape.of(m=5, b=192) not in range_
    assert Shape.of(b=192) not in range_
    assert all(shape["m"] == shape["n"] for shape in Traffic.of_range(range_, 5).shapes())


@pytest.mark.parametrize(
    "text, why, caret",
    [
        ("", "expected AXIS=VALUES", 0),
        ("  ", "expected AXIS=VALUES", 2),
        (";", "expected AXIS=VALUES", 0),
        ("m=1..4;", "expected AXIS=VALUES", 7),
        ("m", "expected AXIS=VALUES", 0),
        ("m=", "expected AXIS=VALUES", 0),
        ("=3", "expected AXIS=VALUES", 0),
        ("M=3", "expected AXIS=VALUES", 0),
        ("m1=3", "expected AXIS=VALUES", 0),
        ("m=1;m=2", "axis m is given twice", 4),
        ("m=1; m=1", "axis m is given twice", 5),
        ("m=1;n=k", "n follows k, which has no values", 4),
        ("m=m", "m follows m, which has no values", 0),
        ("m=5..3", "the range is empty: 5 is greater than 3", 2),
        ("m=1..1e12", "'1e12' is not a whole number", 5),
        ("m=-1", "'-1' is not a whole number", 2),
        ("m=1..-4", "'-4' is not a whole number", 5),
        ("m=1,2,x", "'x' is not a whole number", 6),
        ("m=1,,2", "'' is not a whole number", 4),
        ("m=1.5", "'1.5' is not a whole number", 2),
        ("m=1...4", "'.4' is not a whole number", 5),
        ("m=1..2..3", "'2..3' is not a whole number", 5),
        ("m=1_000", "'1_000' is not a whole number", 2),
        ("m=+3", "'+3' is not a whole number", 2),
        ("m=0x10", "'0x10' is not a whole number", 2),
        ("m=٣", "'٣' is not a whole number", 2),
        ("m=1..４", "'４' is not a whole number", 5),
        ("m=²", "'²' is not a whole number", 2),
        ("m=0", "found 0", 2),
        ("m=0..4", "found 0", 2),
        ("m=8..16:0", "found 0", 8),
        ("m=8..16:x", "'x' is not a whole number", 8),
        (f"m=1..{AXIS_LIMIT + 1}", "2147483648 is over the limit", 5),
        ("m=99999999999999999999", "is over the limit", 2),
        ("m=" + "9" * 5000, "is not a whole number", 2),
        ("m=1..4;n=8..2", "the range is empty: 8 is greater than 2", 9),
    ],
)
def test_bad_grammar_is_told_with_a_caret_under_it(text, why, caret):
    with pytest.raises(UsageError) as caught:
        ShapeRange.parse(text)
    message, shown, under, hint = str(caught.value).split("\n")
    assert why in message
    assert shown == f"  {text}"
    assert under == "  " + " " * caret + "^"
    assert "m=8..512:8" in hint
    assert caught.value.exit_code == 2


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        range_ = ShapeRange.parse(text)
    except UsageError:
        return
    assert ShapeRange.parse(str(range_)) == range_


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_amount_is_refused(weight):
    with pytest.raises(UsageError, match="m=3 has weight"):
        Traffic.of([(Shape.of(m=1), 1.0), (Shape.of(m=3), weight)])


@pytest.mark.parametrize("pairs", [[], [(Shape.of(m=1), 0.0)]])
def test_traffic_without_any_weight_is_refused(pairs):
    with pytest.raises(UsageError, match="no shape with a positive weight"):
        Traffic.of(pairs)


def test_weights_of_any_scale_are_merged_and_scaled():
    traffic = Traffic.of([(Shape.of(m=2), 1e308), (Shape.of(m=1), 1e308), (Shape.of(m=2), 0.7e308)])
    assert traffic.shapes() == (Shape.of(m=1), Shape.of(m=2))
    assert dict(traffic)[Shape.of(m=2)] == pytest.approx(1.7 / 2.7)


@pytest.mark.parametrize("text", ["m=1..4096", "m=8..8192:8", "m=1000..1100"])
def test_a_thinned_sample_weighs_as_the_whole_range_would(text):
    """Log-uniform means that each half of the log range gets the same share, however few shapes stand for it."""
    range_ = ShapeRange.parse(text)
    whole = Traffic.of_range(range_, 10_000)
    thin = Traffic.of_range(range_, 25)
    assert len(whole) == len(range_.span("m"))
    span = range_.span("m")
    middle = (span.first * span.last) ** 0.5

    def share(traffic: Traffic) -> float:
        return sum(weight for shape, weight in traffic if shape["m"] <= middle)

    assert share(thin) == pytest.approx(share(whole), abs=0.06)
    assert dict(thin)[Shape.of(m=span.first)] >= dict(whole)[Shape.of(m=span.first)] * 0.9


@pytest.mark.parametrize("axes_", [(("n", 1), ("m", 2)), (("m", 1), ("m", 2)), (("m", -1),), (("m", AXIS_LIMIT + 1),)])
def test_a_shape_that_is_none_is_refused(axes_):
    with pytest.raises(ValueError):
        Shape(axes_)


def test_a_span_checks_itself():
    for wrong in (
        {"first": 5, "last": 3},
        {"first": 0, "last": 3},
        {"first": 1, "last": AXIS_LIMIT + 1},
        {"first": 1, "last": 3, "step": 0},
        {"first": 1, "last": 3, "listed": (3, 1)},
        {"first": 1, "last": 4, "listed": (1, 3)},
    ):
        with pytest.raises(ValueError):
            Span(**wrong)
    assert Span(first=4, last=4) == Span(first=4, last=4, step=9, listed=(4,))
    with pytest.raises(ValueError, match="both ends"):
        Span(first=1, last=9).sample(1)


def test_a_missing_axis_is_a_key_error():
    with pytest.raises(KeyError):
        Shape.of(m=1)["n"]


@pytest.mark.parametrize("text", ["m=1..4096;n=1..4096", "b=1..8;h=14..112;w=1..64;k=8..512:8", "m=1..2048;n=m;b=1..300"])
def test_traffic_of_several_axes_stays_within_a_hundred_points_and_reaches_both_ends(text):
    range_ = ShapeRange.parse(text)
    traffic = Traffic.of_range(range_)
    assert 90 <= len(traffic) <= 101 and sum(w for _, w in traffic) == pytest.approx(1.0)
    assert all(shape in range_ for shape in traffic.shapes())
    for end in ("first", "last"):
        corner = {axis: getattr(range_.span(axis), end) for axis in range_.axes()}
        assert Shape.of(corner) in traffic.shapes()
    assert traffic == Traffic.of_range(range_)


def test_traffic_of_several_axes_is_log_uniform_along_each():
    traffic = Traffic.of_range(ShapeRange.parse("m=1..4096;n=1..4096"))
    for axis in ("m", "n"):
        low = sum(w for shape, w in traffic if shape[axis] <= 64)
        assert low == pytest.approx(0.5, abs=0.06)


def test_few_combinations_of_several_axes_come_whole():
    traffic = Traffic.of_range(ShapeRange.parse("m=1,2,3;n=4,8"))
    assert len(traffic) == 6
