"""Options under their names of before: served for one release, with a line on stderr."""

import pytest

from haotuner.cli.app import run
from haotuner.cli.options import RENAMED, with_device_names, with_new_names


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tune --device gpu", "tune --device cuda:0"),
        ("tune --device=GPU:1", "tune --device=cuda:1"),
        ("bench pack --device gpu/64", "bench pack --device cuda:0/64"),
        ("tune --device gpux", "tune --device gpux"),
        ("report gpu --out gpu", "report gpu --out gpu"),
    ],
)
def test_a_gpu_may_be_called_so(before: str, after: str):
    assert with_device_names(before.split()) == after.split()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("tun", "tune"),
        ("tune --budgt 3s", "--budget"),
        ("tune --op dens:n=4,k=4", "did you mean 'dense'?"),
        ("candidates --op dense:n=4,k=4 --device h20O", "h200"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_nearest(words: str, hint: str, capsys):
    assert run(words.split()) == 2
    assert hint in capsys.readouterr().err


def test_a_shell_completes_verbs_and_options(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["haotuner"])
    for line, expected in (("haotuner quick", "quickstart"), ("haotuner tune --bud", "--budget")):
        words = {"_HAOTUNER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        for name, value in words.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            run([])
        assert capsys.readouterr().out.split() == [expected]
