"""Hooks of the documentation site: pages that lie beside the code, and the options of every command.

Pages link to files anywhere in the repository, as a reader of the sources wants them. Files outside of ``docs/`` become
``source/PATH`` on the site, and links to them are rewritten, so that a strict build checks every one.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("haotuner", "microkernels", "transfer", "hw_profiles", "tests")
MARK = "<!-- the site puts the options of every command here -->"
# Files that the site has under another name: the front page, and an index beside which a README would be a second one.
RENAMED = {"README.md": "index.md", "docs/decisions/README.md": "decisions/index.md"}
_TITLED = re.compile(r'^```(\w+) title=(\S+)(?: after="([^"]*)")?$', re.MULTILINE)  # as tests/guides/follow.py reads them
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def outside() -> list[Path]:
    """Pages of the repository that are not in ``docs/``, and files that a page links to; each by its real path."""
    pages = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")}
    pages |= {ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"}
    linked = {target for page in (*pages, *DOCS.rglob("*.md")) for target in linked_files(page)}
    return sorted(pages | {path for path in linked if not path.is_relative_to(DOCS) and path != ROOT / "README.md"})


def linked_files(page: Path) -> list[Path]:
    """Files of the repository that a page links to."""
    targets = [(page.parent / link[2]).resolve() for link in _LINK.finditer(page.read_text(encoding="utf-8"))]
    return [path for path in targets if path.is_file() and path.is_relative_to(ROOT)]


def uri_of(path: Path) -> str:
    """Address of a file of the repository on the site, without a leading slash."""
    name = path.relative_to(ROOT).as_posix()
    return RENAMED.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else f"source/{name}")


def on_files(files: Files, config: Any) -> Files:
    """The site's files, with those from outside of ``docs/``."""
    for path in outside():
        file = File.generated(config, uri_of(path), abs_src_path=str(path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The text of a page with links as the site has them; the page of commands with their options."""
    here = page.file.src_uri
    source = Path(page.file.abs_src_path)

    def rewritten(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if "://" in link[2] or not target.is_file() or not target.is_relative_to(ROOT):
            return link[0]
        address = posixpath.relpath(uri_of(target), posixpath.dirname(here) or ".")
        return f"{link[1]}{address}{link[3] or ''}{link[4]}"

    markdown = _TITLED.sub(_captioned, markdown)
    if MARK in markdown:
        markdown = markdown.replace(MARK, options_of_commands())
    return _LINK.sub(rewritten, markdown)


def _captioned(fence: re.Match[str]) -> str:
    """The first line of a code block with a caption: its file, and the line that it goes behind."""
    behind = f", behind the line with {fence[3]}" if fence[3] else ""
    return f'```{fence[1]} title="{fence[2]}{behind}"'


def options_of_commands() -> str:
    """A section for each command: its summary, and a table of its arguments and options."""
    import typer

    from haotuner.cli.app import app_for

    lines: list[str] = []
    commands = dict(typer.main.get_command(app_for([])).commands)
    for name, command in list(commands.items()):
        commands.update({f"{name} {verb}": part for verb, part in getattr(command, "commands", {}).items()})
    for name in sorted(commands, key=lambda name: (list(commands).index(name.split()[0]), name)):
        command = commands[name]
        if command.hidden:  # a former name, which says where its verb went
            continue
        lines += ["", f"### haotuner {name}", "", _cell(command.help or command.short_help or ""), ""]
        rows = [param for param in command.params if param.name != "help"]
        if rows and not hasattr(command, "commands"):
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| {_spelling(param)} | {_cell(getattr(param, 'help', None) or '')} |" for param in rows]
    return "\n".join(lines)


def _spelling(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in param.opts) if param.opts[0].startswith("-") else f"`{param.name.upper()}`"
    return f"{names} `{param.metavar}`" if param.metavar and param.opts[0].startswith("-") else names


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
