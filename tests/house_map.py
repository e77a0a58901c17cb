"""The map of the packages in README.md, made of the floors that the house test holds.

python -m tests.house_map            print it
python -m tests.house_map --write    put it into README.md
"""

from __future__ import annotations

import ast
import sys

from tests.test_house import FLOORS, ROOT

README = ROOT / "README.md"
HEADING = "## Where the code lies\n\n"
HEAD = """A module imports from its own floor and from those below. `python -m tests.house_map` makes this table.

| floor | package | what it holds |
|---|---|---|
"""
WITHOUT = ("errors", "extras", "entry", "__main__")  # single modules


def words(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "haotuner" / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".").replace("``", "`")


def house_map() -> str:
    """The table, the highest floor first."""
    rows = [
        f"| {number} | `{part}` | {words(part)} |\n"
        for number, parts in sorted(FLOORS.items(), reverse=True)
        for part in parts
        if part not in WITHOUT
    ]
    return HEAD + "".join(rows)


def with_map(readme: str) -> str:
    """README's text with the table of today."""
    before, heading, after = readme.partition(HEADING)
    assert heading, f"README.md has no heading {HEADING.strip()!r}"
    rest = after[after.index("\n## ") :] if "\n## " in after else ""
    return before + heading + house_map() + rest


def main(arguments: list[str]) -> int:
    """Print the table, or write it."""
    if arguments == ["--write"]:
        README.write_text(with_map(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(house_map())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
