"""`haotuner tune --template FILE` with what is no template: exit 2, the knob, and what it can be; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import haotuner

TUNE = ("tune", "--op", "softmax", "--shapes", "m=1..4;n=8..16", "--threads", "1", "--peers", "none", "--budget", "5s")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 3\n", "softmax has no knob 'colour'"),
        ("rows = [1, 3]\n", "knob rows of softmax cannot be 3; it can be 1, 2, 4"),
        ("unroll = { min = 9 }\n", "no value in this range; it can be 1, 2, 4, 8"),
        ("rows = []\n", "write a whole number"),
        ("", "it names no knob"),
    ],
)
def test_a_bad_template_is_a_usage_error_in_words(text: str, words: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "knobs.toml").write_text(text)
    answer = haotuner(*TUNE, "--search", "evolution", "--template", "knobs.toml", cache=cache, cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert words in answer.err and "knobs.toml" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["knobs.toml"]


def test_a_template_without_any_schedule_is_a_usage_error(tmp_path: Path, cache: Path) -> None:
    knobs = "row_blocks = 16\nvector_blocks = 4\nrows = 8\nunroll = 8\nterms = 256\ncache_read = 3\naxis = 0\n"
    (tmp_path / "knobs.toml").write_text(knobs)
    pytest.importorskip("onnx")
    from tests.runtime.test_group import node, saved

    file = saved(tmp_path / "product.onnx", [node("MatMul", ["x", "w"], ["y"])], {"x": ["m", 64], "w": [64, 64]}, ["y"])
    words = ("--op", f"group:{file}", "--shapes", "m=1..8", "--threads", "1", "--peers", "none", "--budget", "5s")
    answer = haotuner("tune", *words, "--template", "knobs.toml", cache=cache, cwd=tmp_path)
    assert answer.code == 2 and "has all of these values; allow more of them" in answer.err, answer.err
