"""`haotuner export`: what other projects read, written from a store and from a pack, and read back by our importers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.app import run
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.records.choices import fastest, planned
from haotuner.records.clblast import is_tuner_file
from haotuner.records.codec import trial_of
from haotuner.records.export_vllm import TOKENS, tables_of, why_no_table
from haotuner.records.importing import load_kernel_tuner
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Record, Timed
from haotuner.spec.shape import Shape
from tests.bench.vllm_tables import read_tile_table
from tests.cli.command import haotuner

EXPERTS, BYTES = "grouped_n1024_k512_g8_bf16", "dense_n1024_k512_int8_inint8"
SHORT = "cuda_grouped_wgmmas_bf16__bm8_bn64_bk64_wr1_st6_v8_kn0"
TALL = "cuda_grouped_wgmma_bf16__bm192_bn96_bk64_wr1_st5_v8_kn0"
GEMV = "cuda_grouped_gemv_bf16__bm1_bn8_bk512_c4_wn2_wk2_v8_kn0"
XGEMM = "clblast_xgemm__mwg{}_nwg64_kwg32_mdimc8_ndimc8_mdima8_ndimb8_kwi2_vwm2_vwn2_strm0_strn0_sa1_sb1"


def record(op: str, kernel: str, m: int | None, us: float | None, device: str = "h200") -> Record:
    shape = Shape.of() if m is None else Shape.of(m=m)
    outcome = Failed(stage="build", reason="compile_error", detail="") if us is None else Timed(samples_us=(us, us * 1.01))
    return Record(
        trial=trial_of(op, kernel, shape), outcome=outcome, device_id=device, fingerprint="f", session="s", when=1e9
    )


def stored(folder: Path, records: Iterable[Record]) -> str:
    url = f"sqlite:///{folder / 'records.db'}"
    store = open_store(url)
    store.append(list(records))
    store.close()
    return url


@pytest.fixture
def experts(tmp_path: Path) -> str:
    """Two tokens' rows of two experts each: short tiles, and a slower and a faster one of many rows."""
    rows = [(SHORT, 2, 5.0), (GEMV, 4, 4.0), (SHORT, 2048, 90.0), (TALL, 2048, 60.0)]
    return stored(tmp_path, [record(EXPERTS, kernel, m, us) for kernel, m, us in rows])


def test_experts_are_a_table_under_the_name_that_vllm_looks_for(
    experts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", "vllm", experts, "--out", str(out), "--top-k", "2"]) == 0
    printed = capsys.readouterr()
    (path,) = out.iterdir()
    assert path.name == "E=8,N=512,device_name=NVIDIA_H200.json" and f"{path}: 2 configurations" in printed.out
    assert "left out 1: kernels of cuda_grouped_gemv_bf16" in printed.err and "2 tiles have extents" in printed.err
    best = read_tile_table(path).best_by_m
    assert list(best) == [1, 1024]  # tokens, of two rows each
    # of eight rows the least that Triton multiplies; 192 rows and 96 columns to the next powers of two, 12 warps to 8
    assert best[1] == {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
                       "num_warps": 4, "num_stages": 6}  # fmt: skip
    assert (best[1024]["BLOCK_SIZE_M"], best[1024]["BLOCK_SIZE_N"], best[1024]["num_warps"]) == (256, 128, 8)
    # (256 + 128) x 64 elements of two bytes are 48 KiB a stage, and an H200's block has 227
    assert best[1024]["num_stages"] == 4


def test_the_down_product_and_the_driver_s_name_can_be_said(experts: str, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--top-k", "2", "--layer", "down", "--device-name", "NVIDIA H100 80GB HBM3", "-q"]
    assert run(["export", "vllm", experts, *words]) == 0
    assert (tmp_path / "E=8,N=512,device_name=NVIDIA_H100_80GB_HBM3.json").exists()  # k is 512


def test_products_of_signed_bytes_have_the_name_of_quantised_ones(tmp_path: Path) -> None:
    kernel = "cuda_mma_sint8__bm32_bn64_bk128_wm2_wn2_st4_v16_kn0"
    url = stored(tmp_path, [record(BYTES, kernel, m, 3.0) for m in (1, 16)])
    assert run(["export", "vllm", url, "--out", str(tmp_path / "out"), "-q"]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "N=1024,K=512,device_name=NVIDIA_H200,dtype=int8_w8a8,block_shape=[128,128].json"
    assert read_tile_table(path).best_by_m[16]["num_stages"] == 4


def xgemm(folder: Path, device: str = "titan-rtx") -> str:
    rows = [record("dense_n64_k64", XGEMM.format(mwg), 64, us, device) for mwg, us in ((16, 40.0), (32, 30.0), (64, None))]
    return stored(folder, rows)


def rows_of(path: Path) -> set[tuple[str, str, float | None]]:
    """Trials and times of a foreign file, as `records import` reads it."""
    loaded = load_kernel_tuner(path, find_device=lambda name: find_device(name, measure=False))
    return {
        (item.device_id, item.trial.key(), round(item.outcome.median_us, 6) if isinstance(item.outcome, Timed) else None)
        for item in loaded.records
    }


def test_a_cache_of_kernel_tuner_reads_back_as_the_records_it_came_from(tmp_path: Path) -> None:
    url = xgemm(tmp_path)
    assert run(["export", "kernel-tuner", url, "--out", str(tmp_path / "out"), "--json"]) == 0
    (path,) = (tmp_path / "out").iterdir()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["kernel_name"] == "Xgemm" and content["problem_size"] == [64, 64, 64]
    assert list(content["cache"].values())[0].keys() >= {"MWG", "PRECISION", "time", "times", "timestamp"}
    store = open_store(url, write=False)
    before = {
        (item.device_id, item.trial.key(), round(item.outcome.median_us, 6) if isinstance(item.outcome, Timed) else None)
        for item in store.records()
    }
    store.close()
    again = {(device, key.replace('"hot"', '"cold"'), us) for device, key, us in rows_of(path)}
    assert {us for _, _, us in again} == {us for _, _, us in before} and len(again) == len(before) == 3


def test_a_file_of_clblast_s_tuner_reads_back_with_its_times(tmp_path: Path) -> None:
    assert run(["export", "clblast", xgemm(tmp_path), "--out", str(tmp_path / "out"), "-q"]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "clblast_xgemm_1_32.json" and is_tuner_file(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    # what CLBlast's scripts/database asserts of a file
    assert all(str(row["parameters"]["PRECISION"]) == content["precision"] for row in content["results"])
    assert {row["kernel"] for row in content["results"]} == {"Xgemm"} and content["best_time"] == "0.030150"
    assert content["clblast_device_architecture"] == "SM7.5" and content["clblast_device_vendor"] == "NVIDIA"
    assert sorted(us for _, _, us in rows_of(path) if us) == [30.15, 40.2]


def test_our_own_families_have_caches_with_parameters_of_their_own(experts: str, tmp_path: Path) -> None:
    assert run(["export", "kernel-tuner", experts, "--out", str(tmp_path / "out"), "-q"]) == 0
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "out").iterdir()]
    assert sorted(item["kernel_name"] for item in contents) == sorted(
        ["cuda_grouped_wgmmas_bf16", "cuda_grouped_gemv_bf16", "cuda_grouped_wgmmas_bf16", "cuda_grouped_wgmma_bf16"]
    )
    assert all(item["tune_params"]["bm"] for item in contents)


def plan(*cells: tuple[int, str, float | None]) -> dict[str, Any]:
    considered = [[] if us is None else [{"composition": entry, "us": us, "from": "predicted"}] for _, entry, us in cells]
    return {
        "cells": {
            "bounds": {"m": [bound for bound, _, _ in cells]},
            "entries": [entry for _, entry, _ in cells],
            "considered": considered,
        }
    }


def test_choices_of_a_plan_are_those_of_its_cells_and_what_several_kernels_share_is_counted() -> None:
    op = Op.parse(EXPERTS)
    cells = plan((4, f"{SHORT}@serial", 3.0), (64, f"{SHORT}*1+{SHORT}*2@serial", None), (2048, f"{TALL}@serial", None))
    choices, shared = planned("h200", op, "m", cells, (1, 4, 5, 100, 9000))
    assert [(item.shape["m"], item.us) for item in choices] == [(1, 3.0), (4, 3.0), (100, None), (9000, None)]
    assert shared == 1 and choices[2].kernel["bm"] == 192
    written = tables_of(choices, find_device("h200"), "NVIDIA H200", experts_a_token=2, layer="up")
    assert written.left_out == {"numbers of rows that are no multiple of 2 experts a token": 1}


def test_the_fastest_of_a_shape_is_chosen_and_failures_are_none() -> None:
    rows = [record(EXPERTS, SHORT, 4, 5.0), record(EXPERTS, TALL, 4, 4.0), record(EXPERTS, GEMV, 4, None)]
    (chosen,) = fastest(rows)
    assert chosen.kernel.name == TALL and chosen.us == pytest.approx(4.02)
    assert len(set(TOKENS)) == 18


@pytest.mark.parametrize(
    ("op", "words"),
    [("dense_n64_k64", "signed bytes"), ("grouped_n64_k64_g2", "fp16 and bf16"), ("softmax_n64", "kind softmax")],
)
def test_kinds_that_vllm_has_no_table_for_are_said(op: str, words: str) -> None:
    assert words in why_no_table(Op.parse(op))


@pytest.mark.parametrize(
    ("verb", "words", "message"),
    [
        ("vllm", [], "say how many with --top-k"),
        ("clblast", [], "own Xgemm"),
        ("vllm", ["--top-k", "2", "--op", "dense_n1_k1"], "no records of --op dense_n1_k1"),
        ("kernel-tuner", ["--device", "l40s"], "the store has records of h200"),
        ("kernel-tuner", ["--device", "nonesuch"], "unknown device"),
    ],
)
def test_what_cannot_be_written_is_an_error_and_nothing_is_written(
    experts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, words: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert run(["export", verb, experts, "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_records_of_two_devices_and_files_in_the_way_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [record(EXPERTS, SHORT, 4, 5.0, device) for device in ("h200", "h100")]
    url, out = stored(tmp_path, rows), tmp_path / "out"
    words = ["export", "vllm", url, "--out", str(out), "--top-k", "2"]
    assert run(words) == 2 and "records of h100, h200: a file is of one device" in capsys.readouterr().err
    words += ["--device", "h100"]
    assert run(words) == 0 and run(words) == 2
    assert "exists; add --force" in capsys.readouterr().err
    assert run([*words, "--force"]) == 0
    (tmp_path / "file").touch()
    assert run(["export", "vllm", url, "--out", str(tmp_path / "file"), "--top-k", "2", "--device", "h100"]) == 2
    assert run(["export", "clblast", str(tmp_path), "--out", str(out)]) == 2  # a folder is a pack
    assert "name a store" in capsys.readouterr().err
    assert run(["export", "vllm", str(tmp_path), "--out", str(out)]) == 5
    assert "manifest.json" in capsys.readouterr().err


def test_a_pack_of_a_cpu_has_plans_that_no_format_holds(tuned: tuple[Path, Any], cache: Path, tmp_path: Path) -> None:
    folder, _ = tuned
    answer = haotuner("export", "vllm", "pack", "--out", str(tmp_path / "out"), cache=cache, cwd=folder)
    assert answer.code == 2 and "nothing to write" in answer.err and "join several kernels" in answer.err
    answer = haotuner("export", "vllm", "pack", "--device", "h200", "--out", "out", cache=cache, cwd=folder)
    assert answer.code == 2 and "a pack is for one" in answer.err
