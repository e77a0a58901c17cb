"""Standard streams that are closed, full or left, and text that would steer a terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from haotuner.cli.app import run
from haotuner.cli.output import OutputLost, ReaderLeft, safe, writing
from tests.cli.command import command, environment, haotuner

Tuned = tuple[Path, Any]


def shell(words: str, cache: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of the shell in which ``haotuner`` is the command."""
    text = f'haotuner() {{ {" ".join(command())} "$@"; }}\n{words}'
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment(cache), capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("haotuner inspect pack >&-", 1, "cannot write to standard output: it is closed"),
        ("haotuner inspect pack --json >/dev/full", 1, "cannot write to standard output: No space left on device"),
        ("haotuner inspect pack 2>&- >/dev/null", 0, ""),
        ("haotuner inspect nothing 2>/dev/full", 5, ""),
        ("haotuner inspect pack | head -0; exit ${PIPESTATUS[0]}", 0, ""),
        ("PYTHONIOENCODING=ascii haotuner inspect pack >/dev/null", 0, ""),
    ],
)
def test_streams_that_are_closed_full_or_left(tuned: Tuned, cache: Path, words: str, code: int, message: str) -> None:
    done = shell(words, cache, tuned[0])
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if message else 0), done.stderr


def test_a_closed_standard_stream_is_no_number_for_a_file(tuned: Tuned, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned[0], tmp_path / "it")
    done = shell("haotuner records list --db sqlite:///pack.records.db >&- 2>&-", cache, tmp_path / "it")
    assert done.returncode == 1
    checked = haotuner("records", "check", "--db", "sqlite:///pack.records.db", cache=cache, cwd=tmp_path / "it")
    assert checked.code == 0, "what was to be printed was written into the store"


def test_escape_sequences_of_a_pack_do_not_reach_the_terminal(tuned: Tuned, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned[0] / "pack", tmp_path / "pack")
    path = tmp_path / "pack" / "manifest.json"
    document = json.loads(path.read_text())
    document["device"]["name"] = "\x1b]0;owned\x07\x1b[2J"
    document["tuning"]["shapes"] = "m=1\x9b31m\u202e"
    path.write_text(json.dumps(document))
    answer = haotuner("inspect", "pack", cache=cache, cwd=tmp_path)
    assert not set(answer.out + answer.err) & set("\x1b\x07\x9b\u202e")
    if answer.code == 0:  # a pack whose manifest was changed may be refused
        assert "\\x1b]0;owned\\x07" in answer.out
    wrong = haotuner("inspect", "nothing\x1b[31m", cache=cache, cwd=tmp_path)
    assert "\\x1b[31m" in wrong.err and "\x1b" not in wrong.err


def test_text_of_people_stays_as_it_is() -> None:
    assert safe("12 µs …\tÜber 中\n") == "12 µs …\tÜber 中\n"
    assert safe("a\rb\x00\udcff") == "a\\rb\\x00\\udcff"


def test_each_failure_of_stdout_has_its_name() -> None:
    with pytest.raises(ReaderLeft), writing():
        raise BrokenPipeError
    with pytest.raises(OutputLost, match="it is closed"), writing():
        os.write(-1, b"x")


def test_a_verb_for_which_memory_is_too_little_ends_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(_: Sequence[str]) -> Any:
        app = typer.Typer()

        @app.command()
        def explain() -> None:
            raise MemoryError("5.8 TiB")

        return app

    assert run([], failing) == 4
    assert "more memory was asked for than there is: 5.8 TiB; ask for smaller sizes" in capsys.readouterr().err
