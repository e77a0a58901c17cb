"""`haotuner workload`: a file that tune takes, what a person sees, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.app import run
from haotuner.spec.workloads import workload_shapes

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return tmp_path


def test_the_file_holds_the_ops_of_a_rank(model: Path, capsys: Any) -> None:
    file = model / "w.json"
    assert run(["workload", str(model), "--tp", "2", "--max-tokens", "64", "--max-sequences", "4", "--out", str(file)]) == 0
    assert dict(workload_shapes(str(file))) == {
        "dense_n64_k64": "m=1..64", "dense_n64_k32": "m=1..64", "dense_n96_k64": "m=1..64", "dense_n64_k48": "m=1..64",
        "attention_d16_causalend": "b=2..16:2;t=1..64;s=t",
    }  # fmt: skip
    shown = capsys.readouterr()
    assert "qkv_proj, lm_head" in shown.out and f"haotuner tune --workload {file} --out pack" in shown.out
    assert shown.err == ""


def test_json_and_quiet(model: Path, capsys: Any) -> None:
    file = model / "w.json"
    words = ["workload", str(model), "--only", "dense", "--dtype", "bf16", "--out", str(file)]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == "LlamaForCausalLM" and {row["count"] for row in document["ops"]} == {2, 3}
    assert all(row["op"].endswith("bf16") for row in document["ops"])
    assert run([*words, "-q"]) == 0 and capsys.readouterr().out == f"{file}\n"


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--tp", "3"], "which 3 ranks cannot share"),
        (["--tp", "0"], "ranks 0"),
        (["--dtype", "int4"], "--dtype 'int4': write one of fp32"),
        (["--only", "dance"], "kinds dance: write some of dense"),
        (["--only", ""], "kinds none"),
        (["--only", "experts"], "no ops of the kinds experts"),
        (["--device", "tpu"], "write cpu or cuda"),
        (["--out", "w.txt"], "ends in .json"),
        (["--out", "no/such/w.json"], "name another file with --out"),
    ],
)
def test_what_is_refused(model: Path, capsys: Any, monkeypatch: Any, words: list[str], shown: str) -> None:
    monkeypatch.chdir(model)
    assert run(["workload", ".", *words]) == 2
    assert shown in capsys.readouterr().err
    assert [path.name for path in model.iterdir()] == ["config.json"]


def test_a_folder_without_a_model(tmp_path: Path, capsys: Any) -> None:
    assert run(["workload", str(tmp_path)]) == 2
    assert "name the folder of a model" in capsys.readouterr().err
