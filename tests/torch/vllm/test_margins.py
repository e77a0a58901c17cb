"""Where two engines choose other tokens: only the first difference of a prompt is compared."""

from __future__ import annotations

from tests.bench.doors.vllm import margins_apart


def test_margins_are_those_of_the_first_token_that_differs() -> None:
    ours = {"tokens": [[1, 2, 3], [4, 5, 6]], "margins": [[0.5, 0.25, 0.125], [0.1, 0.0, 0.2]]}
    theirs = {"tokens": [[1, 2, 3], [4, 7, 8]], "margins": [[0.5, 0.25, 0.125], [0.1, 0.015625, 2.0]]}
    assert margins_apart(ours, theirs) == [0.015625]
    assert margins_apart(ours, ours) == []
