"""A house rule of the tests: a file that needs a package beyond ``[tune,dev]`` skips where it is not there."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.test_house import IMPORT_NAMES, ROOT, Import, imports, modules, outside, target, told

BROUGHT = ("tune", "dev")  # the extras that `make test` installs
BY_HAND = ("bench",)  # folders of commands, not tests, that say themselves what they need


@cache
def brought() -> frozenset[str]:
    """Names to import of the packages that ``make test`` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(requirement for extra in BROUGHT for requirement in project["optional-dependencies"][extra]),
    ]
    names = [match[0] for requirement in listed if (match := re.match(r"[A-Za-z0-9-]+", requirement))]
    return frozenset(IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names)


def loads(name: str) -> frozenset[str]:
    """Packages from outside that the import of one module of ours imports, through all modules that it imports."""
    return frozenset().union(*(loaded(module) for module in reached(name)))


@cache
def reached(name: str) -> tuple[str, ...]:
    """Modules of ours that the import of a name runs: a package before its modules."""
    parts = name.split(".")
    targets = (target(".".join(parts[:end])) for end in range(1, len(parts) + 1))
    return tuple(dict.fromkeys(module.name for module in targets if module is not None))


@cache
def loaded(name: str) -> frozenset[str]:
    """What ``loads`` says, of a module by its own name."""
    external: set[str] = set()
    pending = [name]
    seen = {name}
    while pending:
        packages, inner = beside(pending.pop())
        external |= packages
        pending += inner - seen
        seen |= inner
    return frozenset(external)


@cache
def beside(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Packages from outside, and modules of ours, that a module itself imports."""
    eager = [imported.module for imported in modules()[name].imports if imported.eager]
    packages = frozenset(module_name.split(".")[0] for module_name in eager if outside(module_name))
    return packages, frozenset(
        module for module_name in eager if not outside(module_name) for module in reached(module_name)
    )


def lacking(source: str, path: Path) -> list[str]:
    """Lines of one file of tests that fail to import where ``make test`` installed its packages and nothing else."""
    body = ast.parse(source).body
    skip_lines: dict[str, int] = {}  # the package of each importorskip outside all functions, and its first line
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (match := re.match(r"pytest\.importorskip\('(\w+)", ast.unparse(node))):
                skip_lines.setdefault(match[1], node.lineno)

    def needs(imported: Import) -> set[str]:
        if imported.module.split(".")[0] == "tests":
            return set()  # a file of tests itself: read on its own
        return {imported.module.split(".")[0]} if outside(imported.module) else set(loads(imported.module))

    return [
        f"{path}:{imported.line} {imported.module} needs {name}: pytest.importorskip({name!r}) before it"
        for imported in imports(body, path.parent.parts, eager=True)
        if imported.eager
        for name in sorted(needs(imported) - brought())
        if skip_lines.get(name, imported.line) >= imported.line
    ]


def test_a_test_file_skips_without_a_package_that_make_test_does_not_install():
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.relative_to(ROOT / "tests").parts[0] not in BY_HAND]
    wrong = [line for path in sorted(files) for line in lacking(path.read_text(encoding="utf-8"), path.relative_to(ROOT))]
    assert len(files) > 100, "the scan found the tests"
    assert not wrong, told(wrong)


@pytest.mark.parametrize(
    "source, count",
    [
        ("import numpy, tvm, sklearn\nimport pytest", 0),
        ("import onnxruntime", 1),
        ("import pytest\nonnxruntime = pytest.importorskip('onnxruntime')\nfrom onnxruntime import helper", 0),
        ("import pytest\nfrom onnxruntime import helper\nonnxruntime = pytest.importorskip('onnxruntime')", 1),
        ("import pytest\ndef test():\n    pytest.importorskip('onnxruntime')\nimport onnxruntime", 1),
        ("def test():\n    import onnxruntime", 0),
        ("from haotuner.torch.linear import Linear", 1),  # through a module of ours
        ("import pytest\npytest.importorskip('torch')\nfrom haotuner.torch.linear import Linear", 0),
    ],
)
def test_the_rule_finds_what_would_fail(source, count):
    assert len(lacking(source, Path("tests/content/test_one.py"))) == count
