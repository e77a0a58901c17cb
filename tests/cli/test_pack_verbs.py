"""inspect, explain, verify, candidates: their JSON, their words, their exit codes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haotuner.entry import WithoutTorch
from haotuner.errors import PackInvalid
from haotuner.tuning import publisher
from tests.cli.command import environment, haotuner

Tuned = tuple[Path, Any]


def test_verify_says_ok(tuned: Tuned, cache: Path) -> None:
    answer = haotuner("verify", "pack", "--json", cache=cache, cwd=tuned[0])
    assert (answer.code, answer.json()) == (0, {"ok": True, "problems": []})


def test_a_new_pack_whose_verification_takes_too_long_is_a_clear_error(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "VERIFY_LIMIT_S", 1e-3)
    with pytest.raises(PackInvalid, match=r"not verified within .* was not published.*--resume"):
        publisher._verify(tuned[0] / "pack", os.environ)


def test_verify_finds_a_changed_byte(tuned: Tuned, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned[0] / "pack", tmp_path / "pack")
    (library,) = (tmp_path / "pack" / "lib").iterdir()
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    answer = haotuner("verify", "pack", "--json", cache=cache, cwd=tmp_path)
    assert answer.code == 5
    assert answer.json()["ok"] is False and "sha256" in answer.json()["problems"][0]


def test_inspect_shows_the_manifest(tuned: Tuned, cache: Path) -> None:
    document = haotuner("inspect", "pack", "--json", cache=cache, cwd=tuned[0]).json()
    assert document["ops"][0]["name"] == "dense_n48_k32" and document["unverified"] is False
    plain = haotuner("inspect", "pack", "-v", cache=cache, cwd=tuned[0])
    assert "dense_n48_k32" in plain.out and document["ops"][0]["kernels"][0]["name"] in plain.out


@pytest.mark.parametrize("words", [["haotuner", "explain", "pack", "--op", "dense_n48_k32", "--shape", "m=7"],
                                   ["haotuner", "verify", "pack"], ["haotuner.pack", "verify", "pack"]])  # fmt: skip
def test_a_command_does_not_import_the_torch_that_is_installed(
    tuned: Tuned, cache: Path, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment(cache)["PYTHONPATH"]])}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tuned[0],
        env=environment(cache) | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_is_found_where_it_is_installed_and_importing_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [WithoutTorch(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert importlib.util.find_spec("torch") is None
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "torch.py").write_text("")
    assert importlib.util.find_spec("torch") is not None
    with pytest.raises(ModuleNotFoundError, match="does without torch"):
        importlib.import_module("torch")
    assert "torch" not in sys.modules


@pytest.mark.parametrize("m", [1, 7, 24, 1000])
def test_explain_covers_the_rows_exactly(tuned: Tuned, cache: Path, m: int) -> None:
    words = ("explain", "pack", "--op", "dense_n48_k32", "--shape", f"m={m}", "--json")
    document = haotuner(*words, cache=cache, cwd=tuned[0]).json()
    assert {"op", "shape", "regions", "predicted_us", "measured_us", "runner_up"} <= document.keys()
    assert document["shape"] == {"m": m}
    rows = [tuple(region["m"]) for region in document["regions"]]
    assert rows[0][0] == 0 and rows[-1][1] == m
    assert all(previous[1] == following[0] for previous, following in zip(rows, rows[1:], strict=False))
    assert all(region["n"] == [0, 48] and region["kernel"] for region in document["regions"])
    assert all(region["box"] == {"m": region["m"], "n": region["n"]} for region in document["regions"])
    assert document["predicted_us"] > 0 and document["measured_us"] > 0


def test_explain_reads_like_a_sentence(tuned: Tuned, cache: Path) -> None:
    answer = haotuner("explain", "pack", "--op", "dense:n=48,k=32", "--shape", "m=7", cache=cache, cwd=tuned[0])
    assert answer.code == 0, answer.err
    assert "dense_n48_k32 m=7" in answer.out and "expected" in answer.out and "measured now" in answer.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["explain", "pack", "--op", "dense_n1_k1", "--shape", "m=3"], 2),
        (["explain", "pack", "--op", "dense_n48_k32", "--shape", "m=3..9"], 2),
        (["explain", "nothing", "--op", "dense_n48_k32", "--shape", "m=3"], 5),
        (["inspect", "nothing"], 5),
        (["verify", "nothing"], 5),
        (["candidates", "--op", "dense:n=48,k=32", "--device", "no-such"], 2),
        ([], 2),
    ],
)
def test_wrong_use_has_its_exit_code(tuned: Tuned, cache: Path, words: list[str], code: int) -> None:
    answer = haotuner(*words, cache=cache, cwd=tuned[0])
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.err


def test_candidates_counts_what_was_refused(cache: Path, tmp_path: Path) -> None:
    document = haotuner("candidates", "--op", "dense:n=2304,k=768", "--json", cache=cache, cwd=tmp_path).json()
    assert document["kept"] and all(isinstance(name, str) for name in document["kept"])
    assert document["refused"]["registers"] > 0


@pytest.mark.parametrize(
    "verb",
    [
        "",
        "doctor",
        "devices",
        "candidates",
        "derive",
        "tune",
        "workload",
        "bench",
        "inspect",
        "explain",
        "verify",
        "export vllm",
        "export clblast",
        "export kernel-tuner",
    ],  # fmt: skip
)
def test_help(verb: str, cache: Path, tmp_path: Path, golden: Any) -> None:
    golden(haotuner(*verb.split(), "--help", cache=cache, cwd=tmp_path).out)
