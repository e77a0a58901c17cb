"""Options under their names of before: served for one release, with a line on stderr."""

import pytest

from haotuner.cli.app import run
from haotuner.cli.options import RENAMED, with_new_names


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tune --model none --weights=hot --against none", "tune --cost-model none --cache-state=hot --peers none"),
        ("bench pack --only net --given ids=0..9", "bench pack --model net --inputs ids=0..9"),
        ("bench pack --model net", "bench pack --model net"),
        ("explain pack --only=net", "explain pack --model=net"),
        ("inspect pack --only net", "inspect pack --only net"),
        ("", ""),
    ],
)
def test_an_old_name_becomes_the_new_one_and_is_named(before: str, after: str, capsys):
    assert with_new_names(before.split()) == after.split()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == sum(old != new for old, new in zip(before.split(), after.split(), strict=True))
    assert all(" is called --" in line and line.endswith("the old name goes with the next release") for line in lines)


@pytest.mark.parametrize("verb", RENAMED)
def test_help_shows_the_new_names_alone(verb: str, capsys):
    assert run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    for old, new in RENAMED[verb].items():
        assert f" {new} " in text
        assert old in RENAMED[verb].values() or f" {old} " not in text


def test_an_option_under_its_old_name_reaches_the_verb(capsys):
    assert run(["tune", "--op", "dense:n=48,k=32", "--weights", "lukewarm"]) == 2
    assert "--cache-state 'lukewarm': write cold or hot" in capsys.readouterr().err
