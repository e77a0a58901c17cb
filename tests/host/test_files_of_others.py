"""Models, their data, traces and tables that are pipes, devices or links: refused in words, and nobody waits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.records.clblast import is_winners_file
from haotuner.spec.traffic import read_trace


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_trace_that_is_a_pipe_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"t.{ending}")
    with pytest.raises(UsageError, match="it is a pipe, not a regular file"):
        list(read_trace(tmp_path / f"t.{ending}"))


def test_a_table_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.json")
    assert not is_winners_file(tmp_path / "table.json") and not is_winners_file(Path("/dev/zero"))


def saved(folder: Path, location: str) -> Path:
    """A model whose weight lies in a file of its own."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], np.zeros(4, np.float32))
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    return folder / "m.onnx"


def put(folder: Path, what: str) -> Any:
    path = folder / "w.bin"
    match what:
        case "a pipe":
            os.mkfifo(path)
        case "a link to itself":
            path.symlink_to("w.bin")
        case "a link out":
            (folder.parent / "secret").write_bytes(bytes(16))
            path.symlink_to("../secret")
        case "a folder":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("what", "message"),
    [("a pipe", "it is a pipe"), ("a link to itself", "symbolic links"), ("a link out", "leads out of its folder"),
     ("a folder", "it is a folder"), ("a device", "leads out of its folder")],
)  # fmt: skip
def test_external_data_are_files_below_the_model(tmp_path: Path, what: str, message: str) -> None:
    (tmp_path / "model").mkdir()
    path = saved(tmp_path / "model", "w.bin")
    from haotuner.frontends.onnx.read import read

    put(tmp_path / "model", what)
    with pytest.raises(UsageError, match=message):
        read(path)


def test_external_data_may_be_a_link_inside_the_folder(tmp_path: Path) -> None:
    from haotuner.frontends.onnx.read import read

    path = saved(tmp_path, "w.bin")
    (tmp_path / "blob").write_bytes(np.ones(4, np.float32).tobytes())
    (tmp_path / "w.bin").symlink_to("blob")
    assert any(np.array_equal(value, np.ones(4)) for value in read(path).constants.values())


def test_a_model_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from haotuner.frontends.onnx.file import open_model

    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="it is a pipe, not a regular file; name an ONNX model"):
        open_model(tmp_path / "m.onnx")
