"""Workload files: written and read back, and what is wrong with a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.spec.op import Op
from haotuner.spec.traffic import arrivals_of
from haotuner.spec.workload_file import WorkloadOp, read_workload, write_workload
from haotuner.spec.workloads import workload, workload_shapes

OPS = (WorkloadOp("dense:n=768,k=64", "m=1..16", "o_proj", 12), WorkloadOp("attention:d=64", "b=12;t=1..32;s=t"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    write_workload(file, "Net", OPS)
    assert dict(read_workload(file)) == {"dense_n768_k64": "m=1..16", "attention_d64": "b=12;t=1..32;s=t"}
    assert workload(str(file)) == tuple(map(Op.parse, workload_shapes(str(file))))


def test_ranges_of_a_file_come_before_the_usual_one_and_behind_one_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    write_workload(file, "Net", OPS)
    op, own = Op.parse("dense:n=768,k=64"), workload_shapes(str(file))

    def largest(first: bool) -> int:
        return max(shape["m"] for shape in arrivals_of("dynamic").with_own(own, first=first).traffic(op).shapes())

    assert (largest(True), largest(False)) == (16, 2048)


def document(**changes: Any) -> str:
    row = {"op": "dense:n=768,k=64", "shapes": "m=1..16"}
    return json.dumps({"workload": 1, "ops": [row], **changes})


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "not JSON"),
        ("\x00\xff", "not JSON"),
        ("[]", "no workload file"),
        ("{}", "no workload file"),
        (document(workload=2), "schema 2; this haotuner reads 1"),
        (document(workload=True), "no workload file"),
        (document(ops=[]), "names no ops"),
        (document(ops={}), "names no ops"),
        (document(ops=["dense"]), "op 1: expected an object"),
        (document(ops=[{"op": "dense:n=7,k=8"}]), "op 1: expected an object"),
        (document(ops=[{"op": "dance:n=7", "shapes": "m=1"}]), "op 1: .*dance"),
        (document(ops=[{"op": "dense:n=7,k=8", "shapes": "m=0"}]), "op 1: "),
        (document(ops=[{"op": "dense:n=7,k=8", "shapes": "m=1"}] * 2), "op 2: dense_n7_k8 comes twice"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=words) as caught:
        read_workload(file)
    assert "bad.json" in str(caught.value)


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="haotuner workload MODEL_DIR"):
        read_workload(tmp_path / "none.json")
    with pytest.raises(UsageError, match="name another file with --out"):
        write_workload(tmp_path / "no" / "folder.json", "Net", OPS)
    with pytest.raises(UsageError, match="a folder"):
        write_workload(tmp_path, "Net", OPS)
