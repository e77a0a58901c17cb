"""Counts of habits that may only become rarer: what they are today, by a scan of the sources.

python -m tests.house_counts            counts of today beside those in tests/golden/house_counts.json
python -m tests.house_counts --write    lower the numbers in the file to those of today; none is raised
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

from tests.test_house import ROOT, Module, modules, source_files, target

FILE = Path(__file__).parent / "golden" / "house_counts.json"
BANNED = frozenset("one found place given asked told held kept said wanted".split())  # noqa: SIM905
STARTS = re.compile(r"(What|Whether|How|Where|The same)\b")
MOST_WORDS = 30
PARSES = (  # where texts come in
    "haotuner/records/",  # records of this and other tools
    "haotuner/cli/",  # what the user typed
    "haotuner/entry.py",  # the same, before any package is imported
    "haotuner/tuning/request.py",  # the words of a request from Python
    "haotuner/partition/dim_ranges.py",  # what --shapes says of a model's dimensions
    "haotuner/bench/models.py",  # the same, of a model that is raced
    "haotuner/spec/traffic.py",  # a trace of requests is a text file
    "haotuner/spec/workloads.py",  # workloads are tables of specs
    "haotuner/spec/workload_file.py",  # a workload is a text file
    "haotuner/spec/composition.py",  # a region has its kernel by name, the key of searches; it is read once, here
    "haotuner/cost/families.py",  # ops of records in other words than today's
    "haotuner/pack/op.py",  # an entry of a manifest
    "haotuner/backends/timing_job.py",  # jobs of the processes that build and time
    "haotuner/bench/child.py",  # jobs of the processes that race
    "haotuner/bench/compare.py",  # labels of compositions among a pack's facts
    "haotuner/torch/compile_backend.py",  # a layer's op in a graph, likewise
    "haotuner/torch/vllm/serving.py",  # a layer of vLLM as an op in the same words
    "haotuner/torch/swap.py",  # a module's op in the words of --op, which messages quote
)
LINES_STEP = 1000


def counts() -> dict[str, int]:
    """Today's number of each habit."""
    bound = starts = long = parses = 0
    for module in modules().values():
        comes_in = module.path.relative_to(ROOT).as_posix().startswith(PARSES)
        for node in ast.walk(ast.parse(module.path.read_text(encoding="utf-8"))):
            bound += node_binds(node)
            parses += not comes_in and is_parse(node)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                starts += bool(STARTS.match(text))
                long += sum(len(sentence.split()) > MOST_WORDS for sentence in sentences(text))
    return {
        "bindings of names that say nothing": bound,
        "bindings of such names in tests": sum(map(bindings_of, Path(__file__).parent.rglob("*.py"))),
        "docstrings that begin with What, Whether, How, Where, The same": starts,
        f"sentences of docstrings with more than {MOST_WORDS} words": long,
        "calls of .parse( outside records and the command line": parses,
        "thousands of lines of the product": -(-sum(map(lines_of, source_files())) // LINES_STEP),
        "rooms: folders and single modules of haotuner": len({module.part for module in modules().values()} - {""}),
        "rooms in circles of imports": len(in_circles()),
    }


def sentences(text: str) -> list[str]:
    """Sentences of a docstring; a line of a list, a table or an example ends one."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|>]|\w+:\s))|\n(?=\s{4})", text)
    return [sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?;:])\s+", paragraph)]


def bindings_of(path: Path) -> int:
    """Number of bindings of banned names in a source file."""
    return sum(map(node_binds, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))


def node_binds(node: ast.AST) -> bool:
    """Whether a node binds a parameter or a variable to a banned name."""
    if isinstance(node, ast.arg):
        return node.arg in BANNED
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED


def is_parse(node: ast.AST) -> bool:
    """Whether a node is a call of ``Class.parse``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parse"):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id[:1].isupper()


def lines_of(path: Path) -> int:
    """Lines of a source file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def in_circles() -> set[str]:
    """Rooms that import themselves through others; imports for type checkers count."""
    edges: dict[str, set[str]] = {}
    for module in modules().values():
        if module.name.endswith(".__main__"):
            continue  # a command: it may call whatever lies above its room
        edges.setdefault(module.part, set()).update(reached(module))

    def beyond(part: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(edges[part])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += edges.get(other, ())
        return seen

    return {part for part in edges if part in beyond(part)}


def reached(module: Module) -> set[str]:
    """Other rooms that a module imports."""
    others = {target_module.part for imported in module.imports if (target_module := target(imported.module)) is not None}
    return others - {module.part, ""} if module.part else set()


def main() -> int:
    """Print, or write what has become less; 1 if anything has become more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    now = counts()
    for name, count in now.items():
        print(f"{count:6} (at most {before.get(name, count)})  {name}")
    if arguments.write:
        lowered = {name: min(count, before.get(name, count)) for name, count in now.items()}
        FILE.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")
    return int(any(count > before.get(name, count) for name, count in now.items()))


if __name__ == "__main__":
    sys.exit(main())
