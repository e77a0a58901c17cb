"""A house rule of its own: who starts processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "haotuner"
SUBPROCESS = ("run", "Popen", "call", "check_call", "check_output", "getoutput")
OS = ("fork", "system", "popen", "spawn", "posix_spawn", "exec")


def starts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        source = node.module if isinstance(node, ast.ImportFrom) else None
        if isinstance(node, ast.stmt) and ("multiprocessing" in names or source in ("subprocess", "multiprocessing")):
            yield f"line {node.lineno} imports what starts processes"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = node.value.id, node.attr
            if (called[0] == "subprocess" and called[1] in SUBPROCESS) or (called[0] == "os" and called[1].startswith(OS)):
                yield f"line {node.lineno} calls {'.'.join(called)}"


def test_processes_are_started_by_isolate_alone() -> None:
    """There a child has a session of its own: a signal to our process group does not reach it, and it dies with us."""
    violations = {
        path.relative_to(ROOT).as_posix(): lines
        for path in ROOT.rglob("*.py")
        if "isolate" not in path.relative_to(ROOT).parts
        and re.search(r"subprocess|multiprocessing|\bos\b", text := path.read_text(encoding="utf-8"))
        and (lines := list(starts(ast.parse(text))))
    }
    assert violations == {}
    assert list(starts(ast.parse((ROOT / "isolate" / "group.py").read_text(encoding="utf-8"))))
