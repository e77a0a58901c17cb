"""Rules: every step from many expressions computes the same; a side condition that is not shown has no result."""

from __future__ import annotations

import pytest

from haotuner.derive.bounds import bounds_of
from haotuner.derive.expression import Apply, Read, Scope, names, reads, surrounded
from haotuner.derive.moves import moves
from haotuner.derive.nests import normal
from haotuner.derive.price import points
from haotuner.derive.rules import (
    axis_merge,
    axis_split,
    distributed,
    factored,
    inlined,
    layout_split,
    sum_skew,
    sum_split,
    summation_split,
    tightened,
    tightened_read,
    unsplit,
)
from haotuner.derive.search import Check, Limits, search
from haotuner.derive.text import lines, parse
from haotuner.errors import UsageError
from tests.derive.expressions import band, conv, transposed_conv

EXPRESSIONS = [
    conv(3), conv(5), conv(4, 2), conv(3, 1, 3), conv(3, 2, 2), transposed_conv(), transposed_conv(5, 3, 1), band(2, 3),
    parse("A(n, m), B(m, k), C(n); L[i:0..n, j:0..k] S[r:0..m] A[i, r] * B[r, j] * C[i]"),
    parse("A(n, m), B(m, k); L[i:0..n, j:0..k] S[r:0..m] (A[i, r] * B[r, j] + A[i, r] * 2.0)"),
    parse("A(n, m), B(m, k); L[i:0..n, j:0..k] S[r:0..m] A[i, r] * {L[a:0..m, b:0..k] S[c:0..k] B[a, c] * B[a, b]}[r, j]"),
    parse("A(12), B(5); L[i:0..12] S[r:0..5] A[i + r - 1] * B[r]"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(EXPRESSIONS)))
def test_every_step_computes_the_same(at):
    scope = normal(EXPRESSIONS[at])
    checks = [Check(EXPRESSIONS[at], seed=seed) for seed in (1, 2)]
    assert all(check.holds(scope) for check in checks)
    steps = list(moves(scope, explores=True))
    assert steps
    for step in steps:
        for further in (step, *(moves(step.result, explores=False) if step.result is not None else ())):
            if further.result is not None:
                assert all(check.holds(further.result) for check in checks), (further.rule, further.detail)


def body_read(scope: Scope) -> Read:
    """The read that is all of an outer nest's body."""
    assert isinstance(scope.body, Read)
    return scope.body


def first_factor(scope: Scope) -> Read:
    """The read that stands first in a product."""
    assert isinstance(scope.body, Apply) and isinstance(scope.body.operands[0], Read)
    return scope.body.operands[0]


def test_a_sum_splits_where_its_body_is_zero_behind_its_range():
    within = parse("A(n), B(5); L[i:0..n] S[r:0..5] A[i + r] * B[r]")
    result = sum_split(within, "r", 3, names(within)).result
    assert isinstance(result, Scope)
    assert lines(result) == ["T1 = L[i:0..n] S[r1:0..2, r2:0..3] A[i + 3*r1 + r2] * B[3*r1 + r2]"]
    beyond = parse("A(n), B(7); L[i:0..n] S[r:0..5] A[i + r] * B[r]")
    assert sum_split(beyond, "r", 3, names(beyond)).result is None
    assert sum_split(beyond, "r", 5, names(beyond)).result is not None


def test_a_sum_split_in_two_is_one_again():
    scope = conv()
    split = summation_split(scope, {"r", "s"}, names(scope)).result
    assert isinstance(split, Scope)
    (joined,) = [step.result for step in unsplit(split)]
    assert isinstance(joined, Scope) and Check(scope).holds(joined) and len(joined.sums) == 3
    assert not isinstance(body_read(split).source.body.operands[0].source, Scope)  # type: ignore[union-attr]


def test_a_merge_whose_reads_may_be_outside_has_no_result():
    inside = parse("A(n); L[i:0..n] S[r:0..3] {L[a:0..n, b:0..3] S[c:0..4] A[a + b + c]}[i, r]")
    beyond = parse("A(n); L[i:0..n] S[r:0..4] {L[a:0..n, b:0..3] S[c:0..4] A[a + b + c]}[i, r]")
    for scope, shown in ((inside, True), (beyond, False)):
        step = axis_merge(body_read(scope), "a", "b", 1, scope.ranges, names(scope))
        assert (step.result is not None) == shown


def test_ranges_shrink_to_what_is_not_zero_and_is_read():
    scope = parse("A(8), B(n); L[i:0..n] S[r:-4..20] A[r - 1] * B[i]")
    assert [(loop.low, loop.high) for loop in tightened(scope).sums] == [(0, 8)]
    outer = parse("A(8); L[i:0..4] {L[j:-9..90] A[j]}[i + 2]")
    tight = tightened_read(body_read(outer), outer.ranges)
    assert isinstance(tight.source, Scope) and tight.source.box == ((0, 4),)
    assert Check(outer).holds(Scope(outer.spatial, (), tight))


def test_an_axis_is_split():
    scope = parse("A(12); L[i:0..12] S[r:0..2] A[i + r]")
    outer = surrounded(scope, names(scope))
    split = axis_split(body_read(outer), "i", 4, outer.ranges, names(outer)).result
    assert isinstance(split, Read) and isinstance(split.source, Scope)
    assert split.source.box == ((0, 3), (0, 4)) and Check(scope).holds(Scope(outer.spatial, (), split))


def test_a_layout_has_an_axis_for_whole_parts_where_the_rest_is_less_than_one():
    scope = parse("A(2*n), B(2); L[i:0..n] S[r:0..2] A[2*i + r - 1] * B[r]")
    step = layout_split(first_factor(scope), 0, 2, scope.ranges, names(scope))
    assert isinstance(step.result, Read) and [str(e) for e in step.result.index] == ["i - 1", "r"]
    wide = parse("A(2*n), B(3); L[i:0..n] S[r:0..3] A[2*i + r - 1] * B[r]")
    assert layout_split(first_factor(wide), 0, 2, wide.ranges, names(wide)).result is None


def test_a_sum_over_much_is_shifted_along_what_bounds_it():
    scope = parse("Y(n, 4); L[i:0..2*n] S[p:0..n] Y[p, i + 1 - 2*p]")
    result = sum_skew(scope, "p", body_read(scope).index[1], names(scope)).result
    assert isinstance(result, Scope) and [loop.extent for loop in result.sums] == [2]
    assert Check(scope).holds(result)


@pytest.mark.parametrize("text", [
    "Y(n, 4), Z(n); L[i:0..2*n] S[p:0..n] (Y[p, i + 1 - 2*p] + Z[p])",
    "Y(n, 4); L[i:0..2*n] S[p:0..n] Y[p, i + 1 + p + p//2]",
], ids=["beside another term", "in a quotient, too"])  # fmt: skip
def test_a_sum_that_its_index_does_not_bound_stays(text: str):
    scope = parse(text)
    e = next(e for read in reads(scope.body) for e in read.index if len(e.terms) > 1)
    assert sum_skew(scope, "p", e, names(scope)).result is None


def test_factors_that_hang_on_no_sum_stand_outside():
    scope = parse("A(n, m), B(m), C(n); L[i:0..n] S[r:0..m] A[i, r] * B[r] * C[i]")
    (step,) = factored(scope, names(scope))
    assert isinstance(step.result, Scope) and not step.result.sums and Check(scope).holds(step.result)


def test_a_sum_of_terms_becomes_terms_that_are_sums():
    scope = parse("A(n, m), B(m); L[i:0..n] S[r:0..m] (A[i, r] + B[r])")
    (step,) = distributed(scope, names(scope))
    assert isinstance(step.result, Scope) and Check(scope).holds(step.result)


def test_a_nest_that_is_read_outside_of_its_range_stays_apart():
    scope = parse("A(n); L[i:0..n + 1] {L[j:0..n] exp(A[j])}[i]")
    assert inlined(scope) == scope  # exp(0) is 1, outside it is 0
    plain = parse("A(n); L[i:0..n + 1] {L[j:0..n] A[j] * 2.0}[i]")
    assert isinstance(inlined(plain).body, Read) is False and Check(plain).holds(inlined(plain))


def test_a_nest_that_two_axes_leave_at_once_stays_apart():
    """Each axis alone makes 0 outside of its range; -1 and n together do not."""
    nest = "{L[a:0..n, b:0..n] {L[k:n - 1..n] A[k - n + 1]}[a + b]}"
    scope = parse(f"A(2); L[i:0..n + 1] {nest}[i - 1, n - i]")
    assert Check(scope).holds(inlined(scope))


def test_a_budget_ends_a_search_and_says_so():
    result = search(conv(5), [{"n": 1, "h": 8, "w": 8, "c": 4, "f": 4}], Limits(states=20))
    assert 20 <= result.statistics.states < 60 and "20 states" in str(result.statistics)
    assert result.best.price_us <= result.original.price_us


def test_states_that_are_too_large_to_check_are_not_counted_as_wrong(monkeypatch: pytest.MonkeyPatch):
    scope = conv(5)
    most = points((*scope.spatial, *scope.sums), Check(scope).sizes)
    monkeypatch.setattr("haotuner.derive.interpret.MOST_POINTS", most)
    pruned = search(scope, [{"n": 1, "h": 8, "w": 8, "c": 4, "f": 4}], Limits(explorative=1)).statistics.pruned
    assert pruned["too large to check"] and not pruned["wrong"]


@pytest.mark.parametrize("lost", [6, 20, 400])
def test_a_check_is_computed_where_no_extent_is_negative(lost: int):
    scope = parse(f"X(m - {lost}, k), W(f, k)!; L[a:0..m - {lost}, o:0..f] S[d:0..k] X[a, d] * W[o, d]")
    check = Check(scope)
    assert check.sizes["m"] > lost and check.sizes["k"] <= 4 and check.holds(scope)


@pytest.mark.parametrize("window", [2, 5, 7, 16])
def test_a_check_of_windows_without_pads_has_numbers(window: int):
    """At two to four rows a window of five has no place, and empty results are all the same."""
    text = "A(n, h, c), K({0}, c)!; L[b:0..n, y:0..h - {1}] S[r:0..{2}, i:0..c] A[b, y + r, i] * K[r, i]"
    check = Check(parse(text.format(window, window - 1, window)))
    assert check.expected[0].size and not check.holds(parse(text.format(window, window - 1, window - 1)))


def test_of_no_elements_nothing_is_derived():
    scope = parse("X(m, 0), W(f, 0)!; L[a:0..m, o:0..f] S[d:0..k] X[a, d] * W[o, d]")
    with pytest.raises(UsageError, match="is 0: nothing is computed"):
        search(scope, [{"m": 100, "k": 8, "f": 4}])
    assert bounds_of(scope) is None


def test_without_small_sizes_nothing_is_derived():
    scope = parse("X(m - 6000, k), W(f, k)!; L[a:0..m - 6000, o:0..f] S[d:0..k] X[a, d] * W[o, d]")
    with pytest.raises(UsageError, match="below 1 at all small sizes of m"):
        search(scope, [{"m": 100, "k": 8, "f": 4}])
    assert bounds_of(scope) is None
