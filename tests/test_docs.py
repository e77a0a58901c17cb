"""The pages: links lead somewhere, words are plain, READMEs are short, files that are named exist, notes are listed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import house_map, prose
from tests.bench.length_picture import NAMES, PAGE, SECTION, ratios
from tests.guides.follow import Command, blocks

ROOT = Path(__file__).parents[1]
README_LINES = 40  # what, how to add one, what proves it; figures and alternatives belong in docs/decisions
FRONT_BYTES = 9_000
DESIGN_LINES = 150
PARTS = ("guides", "reference", "design")  # folders of pages for people
STREAM = "bert_base: a stream of 1000 requests of 99 sizes, threads: 1"  # the section that the front page quotes
FEATURES = 10  # lines that say what a first version can do
QUESTIONS = {"What", "Whether", "How", "Where", "Open", "Get", "Return", "Returns", "Give", "Let", "Replace"}
OLDER_DOCSTRINGS = {  # written before that rule; the set may only shrink
    "haotuner.torch.model.ServedModel",
    "haotuner.torch.required_ops.ops_of",
    "haotuner.torch.ops.register",
    "haotuner.torch.ops.share_threads",
}
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every page of the sources once: not through the links inside haotuner/, nor what tools left behind."""
    paths = []
    for folder in ("haotuner", "microkernels", "transfer", "hw_profiles", "tests", "docs"):
        paths += [path for path in (ROOT / folder).rglob("*.md") if not any(up.is_symlink() for up in path.parents)]
    return sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *paths])


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


def test_a_decision_says_what_and_why_and_is_listed():
    wrong, index = [], (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    for page in decisions():
        text = page.read_text(encoding="utf-8")
        complete = text.startswith(f"# {page.stem[:3]} ") and "**Chosen" in text and "**Because" in text
        if not complete or f"]({page.name})" not in index:
            wrong.append(page.name)
    assert wrong == [], "each begins with its number, says what was chosen and because of what, and is in index.md"


def test_readme_has_the_map_of_the_packages_as_the_house_test_holds_it():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert house_map.with_map(text) == text, "run python -m tests.house_map --write"


def test_each_question_of_a_newcomer_has_a_file_that_is_there():
    rows = re.findall(r"^\| (\d+) \| .*\? \| `(.*)` \|$", (ROOT / "docs/design/where.md").read_text(encoding="utf-8"), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    assert [path for _, path in rows if not (ROOT / path).is_file()] == []


def test_no_two_decisions_have_one_number():
    numbers = [page.stem[:3] for page in decisions()]
    assert sorted(set(numbers)) == numbers


@pytest.mark.parametrize("name", ["CHANGELOG.md", "docs/history.md"])
def test_changes_are_one_line_each_under_a_heading_for_users(name: str):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines[4:] if line and not re.match(r"## |### (Added|Changed|Fixed)$|- \S", line)]
    assert wrong == []


def test_the_first_version_is_told_by_its_features():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    features = text.partition("### Added\n")[2].partition("\n#")[0]
    assert features.count("\n- ") <= FEATURES


def for_people() -> list[Path]:
    """Pages that are held to the rules of words: not results, which commands write, nor frozen notes, nor the history."""
    docs = ROOT / "docs"
    written = [
        *docs.glob("*.md"),
        *(page for part in ("guides", "reference", "design") for page in (docs / part).glob("*.md")),
    ]
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    return sorted([*top, *(page for page in written if page.name != "history.md")])


@pytest.mark.parametrize("page", for_people(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_for_people_has_short_sentences_and_plain_words(page: Path):
    wrong = prose.faults(page.read_text(encoding="utf-8"))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text, count",
    [
        ("One. W" + "word " * 30 + ".", 0),
        ("word " * 31 + ".", 1),
        ("- " + "word " * 20 + "\n- " + "word " * 20, 0),
        ("| " + "word " * 31 + "| b |", 1),
        ("    " + "word " * 40, 0),
        ("```\n" + "word " * 40 + "\n```", 0),
        ("It takes 0.76 of the time.", 1),
        ("It is 1.3x faster; 0.93 of the peak.", 0),
        ("Rows are woven.", 1),
        ("`woven` and [rows](woven.md)", 0),
    ],
)
def test_what_is_against_the_rules_of_words(text: str, count: int):
    assert len(prose.faults(text)) == count


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= FRONT_BYTES


@cache
def followed() -> set[str]:
    """Commands that the script which follows guides carries out, without their budgets."""
    guide_blocks = blocks((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))
    return {_without_budget(block.text.partition(" || ")[0]) for block in guide_blocks if isinstance(block, Command)}


def _without_budget(command: str) -> str:
    return re.sub(r"--budget \S+", "--budget", command)


def fenced(page: Path, language: str) -> list[str]:
    """Lines of code blocks of one language."""
    text = page.read_text(encoding="utf-8")
    return [line for part in re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S) for line in part.splitlines()]


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_what_a_front_page_tells_to_type_is_followed_in_the_quickstart(name: str):
    typed = [line.partition("  #")[0].strip() for line in fenced(ROOT / name, "sh")]
    unfollowed = [line for line in typed if line.startswith("haotuner") and _without_budget(line) not in followed()]
    assert unfollowed in ([], ["haotuner doctor"])
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for line in fenced(ROOT / name, "python"):
        assert line.removeprefix("answer = ") in quickstart, f"{line!r} is not in the quickstart, which is followed"


def commands() -> list[tuple[Path, str]]:
    """Every line of a page for people that calls haotuner, in a code block."""
    calls = []
    for page in for_people():
        code = False
        for line in page.read_text(encoding="utf-8").splitlines():
            code = code != line.startswith("```")
            if not code and not line.startswith("    "):
                continue
            text = line.strip().removeprefix("$ ").partition(" || ")[0].partition("  #")[0]
            if text.startswith("haotuner ") and not text.endswith("\\") and "…" not in text:
                calls.append((page, text.partition(" && ")[0]))
    return calls


def test_every_command_that_is_shown_has_the_options_that_it_shows():
    typer = pytest.importorskip("typer")
    from haotuner.cli.app import app_for

    known = typer.main.get_command(app_for([])).commands
    wrong = []
    for page, line in commands():
        typed = line.split()[1:]
        if not typed or typed[0].startswith("-"):
            continue
        verb = known[typed[0]]
        if hasattr(verb, "commands"):
            verb = verb.commands[typed[1]]
        options = {name for param in verb.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        wrong += [f"{page.name}: {line}: {word}" for word in typed if word.startswith("--") and word not in options]
    assert wrong == []
    assert len(commands()) > 20, "the scan found them"


def test_the_front_page_says_what_the_page_of_results_says():
    front, results = (ROOT / "README.md").read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    stream = results.partition(f"\n## {STREAM}\n")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line.strip("| ").split("|")] for line in stream.splitlines() if line.startswith("|")]
    rows = {cells[0]: cells for cells in table}
    for peer, name in NAMES.items():
        (row,) = (line for line in front.splitlines() if line.startswith(f"| {name} | **"))
        assert f"**{rows[peer][4].split()[0]}x faster**" in row
        assert f"{rows['ours'][1]}, theirs {rows[peer][1]}" in row
    assert set(ratios(results, SECTION)) == set(NAMES), "what the picture is drawn from"


def public() -> list[tuple[str, ast.AST]]:
    """Classes and functions that the reference of Python shows, by their dotted names."""
    shown = []
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8"), re.M):
        parts = name.split(".")
        (split,) = (end for end in range(1, len(parts) + 1) if (ROOT.joinpath(*parts[:end])).with_suffix(".py").is_file())
        node: ast.AST = ast.parse(ROOT.joinpath(*parts[:split]).with_suffix(".py").read_text(encoding="utf-8"))
        for part in parts[split:]:
            (node,) = (child for child in ast.iter_child_nodes(node) if getattr(child, "name", "") == part)
        shown.append((name, node))
    return shown


def test_docstrings_of_the_public_interface_say_first_what_a_thing_is():
    wrong = {}
    for name, node in public():
        assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        text = ast.get_docstring(node) or ""
        assert text, f"{name} has no docstring"
        faults = prose.faults(text.replace("``", "`"))
        if text.startswith("`") or text.split()[0] in QUESTIONS:
            faults.append(f"begins with {text.split()[0]!r}, not with what it is")
        if faults:
            wrong[name] = faults
    assert set(wrong) <= OLDER_DOCSTRINGS, wrong
    assert set(wrong) == OLDER_DOCSTRINGS, "mended: take it out of OLDER_DOCSTRINGS"


def test_files_that_design_names_exist():
    wrong = []
    for page in for_people():
        if page.parent.name in ("design", "reference"):
            for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", page.read_text(encoding="utf-8")):
                if name.split("/")[0] in ("haotuner", "microkernels", "transfer", "hw_profiles", "tests", "docs"):
                    wrong += [] if (ROOT / name).exists() else [f"{page.name}: {name}"]
    assert wrong == []


def test_files_that_readmes_of_the_sources_name_exist():
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    wrong = []
    for page in pages():
        if page.name != "README.md" or page.parent == ROOT or page.relative_to(ROOT).parts[0] in ("docs", "tests"):
            continue
        for name in re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)`", page.read_text(encoding="utf-8")):
            near = any((folder / name).exists() for folder in (page.parent, ROOT, ROOT / "haotuner"))
            if not near and name not in tests and not any(page.parent.rglob(name)):
                wrong.append(f"{page.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_design_pages_are_short_and_in_the_index_and_the_navigation():
    design = ROOT / "docs" / "design"
    index, site = (design / "index.md").read_text(encoding="utf-8"), (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page for page in design.glob("*.md") if page.name != "index.md"]
    assert len(pages) > 20
    for page in pages:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= DESIGN_LINES
        assert f"]({page.name})" in index and f"design/{page.name}" in site


def test_pages_that_the_navigation_names_exist():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", site, re.M)
    assert len(named) > 40 and [name for name in named if not (ROOT / "docs" / name).is_file()] == []
