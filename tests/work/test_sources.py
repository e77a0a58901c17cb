"""What a timed source means: comments, docstrings and layout are left out, and a text is read into it once."""

from __future__ import annotations

from haotuner.backends import sources


def test_a_text_is_understood_once_and_a_changed_one_anew(tmp_path, monkeypatch):
    asked, whole = [], sources._python

    def noted(text: str) -> str:
        asked.append(text)
        return whole(text)

    monkeypatch.setattr(sources, "_python", noted)
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('"""What it is of."""\nX = 1  # of test_sources\n')
    other.write_text(one.read_text())
    assert sources.meaning(one) == sources.meaning(other) == sources.meaning(one)
    assert len(asked) == 1
    before = sources.meaning(one)
    one.write_text('"""Other words of test_sources."""\nX = 1\n')
    assert sources.meaning(one) == before and len(asked) == 2
    one.write_text("X = 2  # of test_sources\n")
    assert sources.meaning(one) != before and len(asked) == 3


def test_a_comment_in_c_and_in_python_is_told_by_the_suffix(tmp_path):
    text = 'x = "/*";  // y\n'
    (tmp_path / "one.c").write_text(text)
    (tmp_path / "two.h").write_text('x = "/*";\n\n')
    assert sources.meaning(tmp_path / "one.c") == sources.meaning(tmp_path / "two.h") == 'x = "/*";'
