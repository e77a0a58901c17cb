"""The pages: links lead somewhere, folder READMEs are short, decisions are complete and listed, changes are a line each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README_LINES = 40  # what, how to add one, what proves it; figures and alternatives belong in docs/decisions
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every page of the sources once: not through the links inside haotuner/, nor what tools left behind."""
    found = []
    for folder in ("haotuner", "microkernels", "transfer", "hw_profiles", "tests", "docs"):
        found += [path for path in (ROOT / folder).rglob("*.md") if not any(up.is_symlink() for up in path.parents)]
    return sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *found])


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_every_link_leads_to_a_file():
    wrong = []
    for page in pages():
        for target in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
            if "://" not in target and not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_folder_readmes_are_short():
    readmes = (page for page in pages() if page.name == "README.md" and page.parent != ROOT)
    folders = [page for page in readmes if not page.is_relative_to(ROOT / "docs")]
    assert len(folders) > 10, "the scan found them"
    lengths = {page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").splitlines()) for page in folders}
    assert {name: lines for name, lines in lengths.items() if lines > README_LINES} == {}


@pytest.mark.parametrize("page", decisions(), ids=lambda page: page.stem)
def test_a_decision_says_what_and_why_and_is_listed(page: Path):
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem[:3]} "), "its number is its file's"
    assert "**Chosen" in text and "**Because" in text
    assert f"]({page.name})" in (page.parent / "index.md").read_text(encoding="utf-8")


def test_no_two_decisions_have_one_number():
    numbers = [page.stem[:3] for page in decisions()]
    assert sorted(set(numbers)) == numbers


def test_changes_are_one_line_each_under_a_heading_for_users():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines[4:] if line and not re.match(r"## |### (Added|Changed|Fixed)$|- \S", line)]
    assert wrong == []
