"""C and CUDA text by what it means: comments, layout and names of locals count for nothing, all else counts."""

from __future__ import annotations

import pytest

from haotuner.backends.fingerprint import meaning

TEXT = """
#include "ht.h" /* of a kernel */
typedef struct { int first; float second; } pair;
static float scaled(const float* x, int64_t count, float factor) {
  float sum = 0.0f; // of all
  for (int64_t i = 0; i < count; ++i) sum += x[i] * factor;
  pair both = {.first = 1, .second = sum};
  return both.second + LIMIT;
}
int other(int sum) { return sum; }
"""


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("// of all", ""),
        ("/* of a kernel */", "/* of another */"),
        ("  float sum = 0.0f;", "\n\n    float   sum=0.0f;"),
        ("scaled(const float* x, int64_t count, float factor)", "scaled(const float* x,\n    int64_t count, float factor)"),
        ("int other(int sum) { return sum; }", "int other(int value) { return value; }"),
    ],
)
def test_comments_layout_and_names_of_locals_count_for_nothing(was: str, now: str) -> None:
    assert was in TEXT
    assert meaning(TEXT.replace(was, now)) == meaning(TEXT)


def test_every_local_may_have_another_name() -> None:
    text = TEXT
    for was, now in (
        ("sum ", "total "),
        ("sum;", "total;"),
        ("sum}", "total}"),
        ("[i]", "[j]"),
        (" i ", " j "),
        ("++i", "++j"),
    ):
        text = text.replace(was, now)
    text = text.replace("other(int sum) { return total", "other(int sum) { return sum")
    text = text.replace("factor", "by").replace("* x,", "* values,").replace("x[", "values[").replace("both", "made")
    assert meaning(text) == meaning(TEXT)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("0.0f", "0.5f"),
        ("i < count", "i <= count"),
        ("x[i] * factor", "factor[i] * x"),
        ("sum += x[i]", "count += x[i]"),
        ("int first; float second;", "float second; int first;"),
        ("int first; float second;", "int second; float first;"),
        (".first = 1", ".second = 1"),
        ("LIMIT", "limit"),
        ("int other", "long other"),
        ('"ht.h"', '"other.h"'),
        ("int64_t count, float factor", "float factor, int64_t count"),
    ],
)
def test_all_else_counts(was: str, now: str) -> None:
    assert was in TEXT
    assert meaning(TEXT.replace(was, now)) != meaning(TEXT)


def test_a_text_in_quotes_begins_no_comment() -> None:
    assert meaning('x = "/*"; // y\n') == 'x = "/*" ;'
