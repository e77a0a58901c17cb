"""Files of others are opened in one way: ``haotuner/host/files.py`` takes regular files of bounded size and never waits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_house import Module, modules, told

PARTS = ("host", "spec", "pack", "verify", "frontends", "records", "runtime", "cli", "transfer", "cost", "tuning")
READS = {"read_bytes", "read_text", "open"}  # methods of paths; ``open`` of a module, too
CALLS = {
    *("os.open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open", "mmap.mmap"),
    *("np.load", "np.fromfile", "np.memmap", "np.loadtxt", "np.genfromtxt", "pickle.load", "pickle.loads", "json.load"),
    *("onnx.load", "torch.load", "ctypes.CDLL", "sqlite3.connect", "tomllib.load"),
}
# Function -> why it opens a file in a way of its own. A new line needs as good a reason.
ALLOWED = {
    "frontends/torch_export/pt2_file.py ": "parts of an archive that open_regular opened, and a copy in memory",
    "pack/folder.py inner": "a folder of the pack, no link; files in it go through open_regular",
    "pack/folder.py steadily": "the pack's folder itself",
    "pack/write.py _made": "the lock of a folder that was just made",
    "pack/write.py _remove": "the lock of a folder, no link",
    "pack/write.py _put": "written: a new file, no link",
    "pack/write.py _exchange": "the C library of this process",
    "pack/write.py write_pack": "the library that this process has just built",
    "runtime/host_memory.py __init__": "memory without a file",
    "runtime/capture.py write": "written beside its place",
    "runtime/device_memory.py __init__": "the driver's library, found by the system",
    "runtime/device_memory.py find_gpu": "the driver's library, found by the system",
    "host/files.py ": "the careful door itself",
    "host/files.py synchronise": "a folder that was just made, or a log of a store in use: nothing is read",
    "host/files.py scratch_folder": "the lock of a folder that was just made",
    "host/files.py _is_left": "the lock of a folder of ours, no link",
    "host/processor.py read_text": "/proc and /sys",
    "host/processor.py _first_core": "/proc/cpuinfo",
    "runtime/native_library.py __init__": "the library, after its hash was compared",
    "records/opening.py _connection": "SQLite's own way, after records/opening.py found a regular file",
    "records/sqlite.py _host_id": "/proc",
    "records/sqlite.py _born": "/proc",
    "records/opening.py create": "written: a new file",
    "records/opening.py filesystem": "/proc/self/mounts",
    "records/schema.py image": "a database in memory",
    "records/export.py _jsonl": "written beside its place",
    "transfer/models_shipped.py _shipped_model": "a file of this package",
    "cost/vendor_level.py _tables": "a file of this package",
    "cli/output.py ": "/dev/null",
    "cli/pages/document.py html_of": "files of this package",
    "cli/pages/document.py plotly_source": "a file of Plotly's package",
}  # fmt: skip


def openings(module: Module) -> Iterator[tuple[str, int, str]]:
    """Function, line and call of everything that opens a file."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, int, str]]:
        for child in ast.iter_child_nodes(node):
            own = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else inside
            if isinstance(child, ast.Call):
                name = ast.unparse(child.func)
                method = isinstance(child.func, ast.Attribute) and child.func.attr in READS
                if name in CALLS or name == "open" or (method and name not in _OTHERS):
                    yield inside, child.lineno, name
            yield from walk(child, own)

    text = module.path.read_text(encoding="utf-8")
    if re.search("|".join((*READS, *(name.rpartition(".")[2] for name in CALLS))), text):  # parsing takes the time
        yield from walk(ast.parse(text), "")


_OTHERS = {"folder.open", "book.open", "self.book.open", "book.probes[name].open", "door.open", "webbrowser.open"}


def test_files_of_others_are_opened_in_one_way():
    wrong, used = [], set()
    for module in modules().values():
        if module.part not in PARTS:
            continue
        where = module.where.removeprefix("haotuner/")
        for function, line, call in openings(module):
            key = next((candidate for candidate in (f"{where} {function}", f"{where} ") if candidate in ALLOWED), "")
            used.add(key)
            if not key:
                wrong.append(f"{where}:{line} {function}: {call}; files of others go through haotuner/host/files.py")
    assert not wrong, told(wrong)
    there = {module.where.removeprefix("haotuner/") for module in modules().values()}
    assert {key for key in ALLOWED if key.split()[0] in there} - used == set(), "these open nothing any more"
