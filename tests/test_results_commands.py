"""Commands that pages of results name: they exist today, and have the options that are shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# In code between backticks, perhaps over lines; or in a block of its own.
_CALL = re.compile(r"(?:python -m ((?:tests|haotuner)\.[\w.]+)|\b(haotuner) )([^`]*)")


def calls() -> list[tuple[str, str, list[str]]]:
    """Page, module or ``haotuner``, and words behind it, of every command on a page of results."""
    commands = []
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"```.*?\n(.*?)```", text, re.DOTALL)
        spans += re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for span in spans:
            for match in _CALL.finditer(span.replace("\\\n", " ")):
                words = match[3].splitlines()[0] if span.count("python -m") > 1 else match[3]
                commands.append((page.name, match[1] or match[2], words.split()))
    return commands


def options_of(module: str) -> set[str]:
    """Options that the source of a module names, or any file of a package. FileNotFoundError where there is none."""
    path = ROOT.joinpath(*module.split("."))
    files = sorted(path.rglob("*.py")) if (path / "__main__.py").is_file() else [path.with_suffix(".py")]
    texts = [node.value for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    return {text for text in texts if re.fullmatch(r"--[\w-]+", text)} | {"--help"}


def options_of_command(words: list[str]) -> set[str]:
    """Options of a verb of haotuner. KeyError where there is none."""
    typer = pytest.importorskip("typer")
    from haotuner.cli.app import app_for

    verb = typer.main.get_command(app_for([])).commands[words[0]]
    if hasattr(verb, "commands"):
        verb = verb.commands[words[1]]
    return {name for param in verb.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}


def test_commands_of_results_exist_and_have_the_options_that_are_shown() -> None:
    wrong = []
    for page, command, words in calls():
        try:
            options = options_of_command(words) if command == "haotuner" else options_of(command)
        except (FileNotFoundError, KeyError, IndexError) as error:
            wrong.append(f"{page}: {command} {' '.join(words[:2])}: {error!r}")
            continue
        shown = [word.partition("=")[0].rstrip(",.;)") for word in words if word.startswith("--")]
        wrong += [f"{page}: {command} {' '.join(words[:1])}: {word}" for word in shown if word not in options]
    assert wrong == []


def test_every_page_that_the_list_of_results_names_shows_its_command() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]", (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8"), re.M)
    shown = {page.removesuffix(".md") for page, _, _ in calls()}
    assert len(listed) > 20 and set(listed) - shown - {"transfer"} == set()
