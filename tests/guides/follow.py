"""Follows a guide to the letter: ``python -m tests.guides.follow docs/guides/add-an-operator.md``.

A copy of the source tree gets an environment of its own. The guide's code blocks are then carried out in order, and the
first that does not do what the guide says ends the run with exit code 1. Three kinds of blocks count, all others are prose:

    ```python title=haotuner/ops/row_sum.py                    the whole text of a new file
    ```python title=haotuner/ops/index.py after="line"         text that is inserted after the one line that contains this
    ```console                                                 `$ command`, more lines of it after `> `, then lines that its
                                                               output must contain

``$ pip install -e FOLDER`` makes a package of the guide's known to the environment as pip would, without a network.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 600.0
_FENCE = re.compile(r"^```(\w*)[ \t]*(.*)$")
_SETTING = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')
_ANY = re.compile(r"\.\.\.|…")  # in a line of expected output: whatever stands there
_INSTALL = re.compile(r"pip install -e (\w+)")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "dist", ".*_cache", ".hypothesis")


class GuideWrong(Exception):
    """A guide that cannot be read, or that does not do what it says; names the guide's line."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to write, or with ``after`` text to insert behind the one line that contains it."""

    line: int
    path: str
    text: str
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command, and lines that its output must contain in this order (``...``: whatever stands there)."""

    line: int
    text: str
    expected: tuple[str, ...] = ()


Block = File | Command


def blocks(text: str) -> list[Block]:
    """The blocks of a guide that count, in order.

    Raises:
        GuideWrong: a fence is not closed, a setting is unknown, or a path leaves the tree.
    """
    parsed: list[Block] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        at += 1
        if not opened:
            continue
        first = at
        while at < len(lines) and lines[at].rstrip() != "```":
            at += 1
        if at == len(lines):
            raise GuideWrong(f"line {first}: this code block is never closed")
        body = lines[first:at]
        at += 1
        if opened[1] == "console":
            parsed += _commands(body, first + 1)
        elif opened[2].strip():
            parsed.append(_file(opened[2], body, first))
    return parsed


def _file(settings: str, body: list[str], line: int) -> File:
    options = {name: quoted or bare for name, quoted, bare in _SETTING.findall(settings)}
    if "title" not in options or options.keys() - {"title", "after"} or _SETTING.sub("", settings).strip():
        raise GuideWrong(f'line {line}: cannot read {settings!r}; expected title=PATH, then after="text" or nothing')
    path = Path(options["title"])
    if path.is_absolute() or ".." in path.parts:
        raise GuideWrong(f"line {line}: {path} is not inside the source tree")
    return File(line, path.as_posix(), "".join(f"{text_line}\n" for text_line in body), options.get("after"))


def _commands(body: list[str], line: int) -> list[Block]:
    commands: list[Block] = []
    at = 0
    while at < len(body):
        if not body[at].startswith("$ "):
            raise GuideWrong(f"line {line + at}: {body[at]!r} stands before any command; commands begin with '$ '")
        start, words = at, [body[at][2:]]
        at += 1
        while at < len(body) and body[at].startswith("> "):
            words.append(body[at][2:])
            at += 1
        expected = []
        while at < len(body) and not body[at].startswith("$ "):
            if body[at].strip():
                expected.append(body[at].strip())
            at += 1
        commands.append(Command(line + start, "\n".join(words), tuple(expected)))
    return commands


def apply(block: File, tree: Path) -> None:
    """Write or change one file of a tree.

    Raises:
        GuideWrong: a new file exists already, or the line to insert behind is not there exactly once.
    """
    path = tree / block.path
    if block.after is None:
        if path.exists():
            raise GuideWrong(f"line {block.line}: {block.path} exists already; a guide writes new files or inserts lines")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return
    if not path.is_file():
        raise GuideWrong(f"line {block.line}: there is no {block.path} to insert into")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    hits = [number for number, line in enumerate(lines) if block.after in line]
    if len(hits) != 1:
        raise GuideWrong(f"line {block.line}: {block.after!r} is in {len(hits)} lines of {block.path}; expected one")
    lines.insert(hits[0] + 1, block.text)
    path.write_text("".join(lines), encoding="utf-8")


def run(command: Command, tree: Path, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Run one command in a tree with the tree's environment; its output, stdout and stderr together.

    Raises:
        GuideWrong: it failed, took longer than the limit, or did not print what the guide shows.
    """
    package = _INSTALL.fullmatch(command.text)
    if package:
        return installed(tree / package[1], tree)
    where = {**os.environ, "PATH": f"{tree / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    where.pop("PYTHONPATH", None)
    try:
        ended = subprocess.run(
            ["bash", "-c", command.text],
            cwd=tree,
            env=where,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise GuideWrong(f"line {command.line}: `{command.text}` took longer than {limit_s:.0f} s") from late
    if ended.returncode != 0:
        raise GuideWrong(f"line {command.line}: `{command.text}` ended with {ended.returncode}:\n{ended.stdout}")
    printed = iter(ended.stdout.splitlines())
    for expected_line in command.expected:
        pattern = re.compile(".*".join(re.escape(part) for part in _ANY.split(expected_line)))
        if not any(pattern.search(line) for line in printed):
            raise GuideWrong(
                f"line {command.line}: `{command.text}` did not print {expected_line!r}, or not there:\n{ended.stdout}"
            )
    return ended.stdout


def copied(tree: Path) -> Path:
    """A copy of the source tree at ``tree``, with an environment in which haotuner is that copy."""
    shutil.copytree(ROOT, tree, symlinks=True, ignore=_LEFT_OUT)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    (packages,) = (tree / ".venv" / "lib").glob("python3*/site-packages")
    borrowed = [sysconfig.get_path("purelib"), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    (packages / "a_haotuner.pth").write_text(f"{tree}\n", encoding="utf-8")
    (packages / "b_borrowed.pth").write_text("".join(f"{entry}\n" for entry in dict.fromkeys(borrowed)), encoding="utf-8")
    script = tree / ".venv" / "bin" / "haotuner"
    script.write_text(f"#!{tree}/.venv/bin/python\nimport sys\nfrom haotuner.entry import main\n\nsys.exit(main())\n")
    script.chmod(0o755)
    installed(tree, tree)  # its entry points, too
    return tree


def installed(folder: Path, tree: Path) -> str:
    """What an editable install of a package without dependencies leaves in the tree's environment."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (packages,) = (tree / ".venv" / "lib").glob("python3*/site-packages")
    facts = packages / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project.get("entry-points", {}).items()
    lines = [
        line for group, names in groups for line in (f"[{group}]", *(f"{key} = {value}" for key, value in names.items()))
    ]
    (facts / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (packages / f"c_{project['name']}.pth").write_text(f"{folder}\n", encoding="utf-8")
    return f"installed {project['name']}"


def follow(guide: Path, tree: Path, say: Callable[[str], None] = print) -> int:
    """Carry out a guide in a tree; how many blocks there were. GuideWrong where it is wrong or has nothing to do."""
    guide_blocks = blocks(guide.read_text(encoding="utf-8"))
    if not any(isinstance(block, Command) for block in guide_blocks):
        raise GuideWrong(f"{guide} has no command; a guide that runs nothing proves nothing")
    for block in guide_blocks:
        if isinstance(block, File):
            say(f"{guide.name}:{block.line}: {'insert into' if block.after else 'write'} {block.path}")
            apply(block, tree)
        else:
            say(f"{guide.name}:{block.line}: $ {block.text}")
            say(run(block, tree).rstrip())
    return len(guide_blocks)


def main(words: list[str] | None = None) -> int:
    """0 if the guide did what it says, 1 if not."""
    reader = argparse.ArgumentParser(
        prog="python -m tests.guides.follow", description="Follows a guide in a copy of the tree."
    )
    reader.add_argument("guide", type=Path, nargs="+")
    arguments = reader.parse_args(words)
    for guide in arguments.guide:
        with tempfile.TemporaryDirectory(prefix="haotuner-guide-") as folder:
            try:
                count = follow(guide, copied(Path(folder) / "tree"))
            except GuideWrong as wrong:
                print(f"{guide}: {wrong}", file=sys.stderr)
                return 1
            print(f"{guide}: {count} blocks, all as it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
