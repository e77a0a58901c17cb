"""Files of torch.export from others: nothing in them runs, and what would is refused in a line."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.exported_program import read_exported
from haotuner.frontends.torch_export.pt2_file import _only_arithmetic

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
Members = dict[str, bytes]


class Runs:
    """An object whose unpickling makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def members() -> Members:
    """What the file of a small module holds, by name below its folder."""

    class Scaled(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.each = torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.each(x).reshape(2 * x.shape[0]) + x.shape[0]

    file = io.BytesIO()
    program = torch.export.export(Scaled(), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("b", max=64)},))
    torch.export.save(program, file)
    with zipfile.ZipFile(file) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def written(path: Path, members: Members, how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(f"m/{name}", data)
    return path


def changed(members: Members, name: str, change: Callable[[Any], object]) -> Members:
    """The members with one JSON among them changed."""
    document = json.loads(members[name])
    change(document)
    return {**members, name: json.dumps(document).encode()}


def first_node(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"][0]


def with_size(text: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        first_node(program)["inputs"][1]["arg"] = {"as_sym_int": {"as_expr": {"expr_str": text, "hint": None}}}

    return change


def with_target(name: str) -> Callable[[Any], None]:
    return lambda program: first_node(program).update(target=name)


def test_what_torch_saved_is_read_and_sample_inputs_and_guards_do_not_run(tmp_path, members):
    ran = tmp_path / "ran"
    evil = {**members, "data/sample_inputs/model.pt": pickled(((Runs(ran),), {}))}
    evil = changed(
        evil, "models/model.json", lambda document: document.update(guards_code=[f"__import__('os').mkdir({str(ran)!r})"])
    )
    graph = read_exported(written(tmp_path / "m.pt2", evil))
    assert graph.inputs == ("x",) and len(graph.dimensions) == 1
    assert not ran.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_target("torch.os.mkdir"), "operators without a rule: torch.os.mkdir"),
        (with_target("torch.ops.higher_order.print"), "operators without a rule"),
        (with_size("__import__('os').mkdir('{ran}')"), "no arithmetic of sizes"),
        (with_size("Symbol.__class__"), "no arithmetic of sizes"),
        (lambda document: document["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec='"collections.defaultdict"'), "class of another module"),
    ],
)  # fmt: skip
def test_graphs_that_would_run_something_are_refused(tmp_path, members, change, words):
    evil = changed(members, "models/model.json", change)
    evil["models/model.json"] = evil["models/model.json"].replace(b"{ran}", str(tmp_path / "ran").encode())
    with pytest.raises(UsageError, match=words):
        read_exported(written(tmp_path / "m.pt2", evil))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["weights/weight_0", "weights/model.pt", "constants/model.pt", "constants/opaque_obj_0",
                                   "constants/custom_obj_0", "aotinductor/model/model.so"])  # fmt: skip
def test_members_that_would_run_something_are_refused(tmp_path, members, where):
    ran = tmp_path / "ran"
    evil = {**members, f"data/{where}": pickle.dumps(Runs(ran)) if "obj" in where else pickled({"w": Runs(ran)})}
    if where == "weights/weight_0":
        config = "data/weights/model_weights_config.json"
        evil = changed(
            evil, config, lambda document: [entry.update(use_pickle=True) for entry in document["config"].values()]
        )
    with pytest.raises(UsageError, match=r"more than tensors|object of a class|compiled code") as refusal:
        read_exported(written(tmp_path / "m.pt2", evil))
    assert "\n" not in str(refusal.value) and not ran.exists()


def test_pickles_of_tensors_are_read(tmp_path, members):
    config = "data/weights/model_weights_config.json"
    names = {entry["path_name"]: entry["tensor_meta"]["sizes"] for entry in json.loads(members[config])["config"].values()}
    pickled_members = changed(
        members, config, lambda document: [entry.update(use_pickle=True) for entry in document["config"].values()]
    )
    pickled_members |= {f"data/weights/{name}": pickled(torch.nn.Parameter(torch.ones([size["as_int"] for size in sizes])))
                        for name, sizes in names.items()}  # fmt: skip
    graph = read_exported(written(tmp_path / "m.pt2", pickled_members))
    assert all((constant == 1).all() for name, constant in graph.constants.items() if "weight" in name)


def test_what_is_no_such_file_is_said_in_a_line(tmp_path, members, capfd):
    whole = written(tmp_path / "whole.pt2", members).read_bytes()
    os.mkfifo(tmp_path / "pipe.pt2")
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "garbage.pt2").write_bytes(b"PK nothing")
    (tmp_path / "short.pt2").write_bytes(whole[: len(whole) // 2])
    written(tmp_path / "packed.pt2", members, zipfile.ZIP_DEFLATED)
    written(tmp_path / "other.pt2", {"readme": b"hello"})
    written(tmp_path / "text.pt2", {**members, "models/model.json": b"{]"})
    written(tmp_path / "list.pt2", {**members, "models/model.json": b"[]"})
    words = {"pipe": "pipe", "folder": "folder", "garbage": "no program", "short": "no program", "packed": "compressed",
             "other": "no program", "text": "damaged", "list": "damaged", "absent": "cannot be read"}  # fmt: skip
    for name, word in words.items():
        with pytest.raises(UsageError, match=word) as refusal:
            read_exported(tmp_path / f"{name}.pt2")
        assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", ["s0 + 1", "Mul(Integer(8), Symbol('s81', positive=True, integer=True))", "2**s0",
                                  "FloorDiv(Symbol('s0'), Integer(2))", "Pow(Symbol('s0'), Integer(2))", "Eq(s0, 3)",
                                  "Float('0.5', precision=53)", "Max(1, s0 // 2)"])  # fmt: skip
def test_sizes_that_torch_writes_are_arithmetic(size):
    _only_arithmetic(size)


@pytest.mark.parametrize("size", ["().__class__", "open('x')", "lambda: 1", "9**9**9", "Pow(Integer(9), Integer(99999999))",
                                  "(9**60)**60", "[1 for x in y]", "Symbol('a' + 'b')", "f(s0)", "'s0'", "1 << 999999999",
                                  "s0[0]", "Symbol('s0').name", "Float('open(1)')", "(", "Max(s0, *y)"])  # fmt: skip
def test_other_sizes_are_refused(size):
    with pytest.raises(UsageError, match="no arithmetic"):
        _only_arithmetic(size)
