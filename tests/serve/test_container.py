"""The container file: what it copies is there, what it installs and runs exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from haotuner.cli.app import VERBS

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docker" / "Containerfile").read_text(encoding="utf-8").splitlines()


def instructions(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in LINES if line.startswith(f"{name} ")]


def test_every_file_that_it_copies_is_in_the_tree() -> None:
    for text in instructions("COPY"):
        *sources, _ = [word for word in text.split() if not word.startswith("--")]
        if "--from=build" not in text:
            assert sources and all((ROOT / source).exists() for source in sources), text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = " ".join(instructions("COPY"))
    assert project["project"]["readme"] in copied and all(file in copied for file in project["project"]["license-files"])
    assert all((ROOT / "haotuner" / name).is_symlink() is False or name in copied for name in ("microkernels", "transfer"))


def test_it_installs_an_extra_and_runs_a_verb_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = re.findall(r"\.whl\)\[(\w+)\]", "\n".join(LINES))
    assert extra in project["optional-dependencies"]
    command, verb, *options = json.loads(instructions("ENTRYPOINT")[0])
    assert command in project["scripts"] and verb in VERBS and options[0] == "--host"
    assert instructions("EXPOSE") == ["8000 8001"] and len(instructions("FROM")) == 2
