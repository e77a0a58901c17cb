"""Known winners of vLLM: reading its files, and their rank among this project's candidates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.microkernels.cuda.triton_tile import TritonTile, triton_tile
from haotuner.microkernels.index import family_named
from haotuner.records.vllm import DENSE, GROUPED, TileTable, device_name, triton_extent
from haotuner.spec.kernel import MicroKernel
from tests.bench.tile_winners import (
    BEYOND_LAWS,
    Candidates,
    Unranked,
    candidates_of,
    first_shares,
    refusals_by_law,
    standings,
    tile_tables,
)
from tests.bench.tile_winners_page import page
from tests.bench.vllm_tables import is_tile_file, read_tile_table

SHARED = Path(__file__).parents[3] / "shared" / "data" / "winners_by_m" / "vllm_0.32.jsonl.gz"


def tile(m: int, n: int, k: int = 128, warps: int = 4, stages: int = 3) -> dict[str, int]:
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
    return dict(zip(names, (m, n, k, 1, warps, stages), strict=True))


def dense(device: str, **best: dict[str, int]) -> TileTable:
    by_m = {int(name[1:]): values for name, values in best.items()}
    return TileTable(
        kind=DENSE, device_name=device, columns=1024, depth=512, dtype="int8_w8a8", block_shape="[128,128]", best_by_m=by_m
    )


def written(folder: Path, table: TileTable) -> Path:
    path = folder / table.file_name
    path.write_text(table.text(), encoding="utf-8")
    return path


def test_a_table_reads_back_from_the_name_and_the_content_that_vllm_has(tmp_path: Path) -> None:
    experts = TileTable(kind=GROUPED, device_name="NVIDIA_H200", columns=14336, experts=8, best_by_m={1: tile(16, 64)})
    assert experts.file_name == "E=8,N=14336,device_name=NVIDIA_H200.json"
    products = dense("NVIDIA_H20", m1=tile(64, 128), m4096=tile(64, 128, warps=8))
    assert products.file_name == "N=1024,K=512,device_name=NVIDIA_H20,dtype=int8_w8a8,block_shape=[128,128].json"
    for table in (experts, products):
        path = written(tmp_path, table)
        assert is_tile_file(path) and read_tile_table(path) == table


def test_fields_that_are_no_numbers_and_the_version_of_triton_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "E=8,N=64,device_name=A.json"
    path.write_text(json.dumps({"triton_version": "3.5.1", "2": {**tile(16, 32), "grf_mode": "256"}}), encoding="utf-8")
    assert read_tile_table(path).best_by_m == {2: tile(16, 32)}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tiles.json", "{}", "the name is not that of a tile table"),
        ("N=64,device_name=A.json", "{}", "the name is not that of a tile table"),
        ("E=8,N=64,device_name=A.json", '{"1": {"BLOCK', "half a download"),
        ("E=8,N=64,device_name=A.json", "[1]", "expected an object"),
        ("E=8,N=64,device_name=A.json", '{"few": {}}', "is no number of rows"),
        ("E=8,N=64,device_name=A.json", '{"1": {"tile_m": 16}}', "of another kernel"),
    ],
)
def test_what_is_no_table_is_refused_in_words(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_tile_table(path)


def test_names_extents_and_rows_are_those_of_vllm() -> None:
    assert (
        device_name("NVIDIA H200 NVL") == "NVIDIA_H200" and device_name("NVIDIA A100-SXM4-80GB") == "NVIDIA_A100-SXM4-80GB"
    )
    assert [triton_extent(extent) for extent in (1, 8, 16, 24, 96, 128)] == [16, 16, 16, 32, 128, 128]


def test_tile_programs_have_words_of_triton_and_others_have_none() -> None:
    def of(name: str) -> TritonTile | None:
        kernel = MicroKernel.parse(name)
        return triton_tile(family_named(kernel.family), kernel)

    assert of("cuda_mma_bf16__bm64_bn128_bk32_wm2_wn4_st4_v8_kn0") == TritonTile(
        block_m=64, block_n=128, block_k=32, warps=8, stages=4
    )
    hopper = of("cuda_wgmma_bf16__bm128_bn256_bk64_wr1_st4_v8_kn0")
    assert hopper == TritonTile(block_m=128, block_n=256, block_k=64, warps=8, stages=4)
    assert of("cuda_simt_fp32__bm64_bn64_bk8_tm4_tn8_v4_kn0") is None


def test_a_winner_is_ranked_by_its_counterpart_and_other_devices_teach_it() -> None:
    """Three devices choose one tile that the analysis ranks low: with any of them left out, the others put it ahead."""
    odd = tile(128, 32, 64, warps=2, stages=2)
    tables = [dense(name, m16=odd, m32=odd) for name in ("NVIDIA_H20", "NVIDIA_A100-SXM4-80GB", "NVIDIA_L20")]
    every = [item for item in map(candidates_of, tables) if isinstance(item, Candidates)]
    assert [item.device.id for item in every] == ["h20", "a100-80gb", "l20"]
    counterpart = np.flatnonzero(every[0].counterparts(16)).tolist()
    kernels = [every[0].kernels[at][1] for at in counterpart]
    assert kernels and all((kernel["bm"], kernel["bn"]) == (128, 32) for kernel in kernels)
    items = standings(every)
    assert len(items) == 6
    for item in items:
        assert item.learned < item.analysis and item.lost > 1.0
        assert item.learned_elsewhere < item.analysis
    analysis, learned, _ = first_shares(items)
    assert learned >= analysis
    # two warps leave schedulers idle, and 32 rows pad a tile of 128
    assert set(refusals_by_law(items)) <= {BEYOND_LAWS, "rows", "occupancy", "warp tile"} and refusals_by_law(items)
    text = page(items, [Unranked(tables[0], "for a test")], [])
    assert "| dense int8_w8a8, h20 | 2 |" in text and "| 1 | for a test |" in text


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (dense("Mystery_9000", m1=tile(16, 16)), "no profile"),
        (dense("AMD_Instinct_MI300X", m1=tile(16, 16)), "other makers"),
        (
            TileTable(
                kind=GROUPED, device_name="NVIDIA_H200", columns=64, experts=8, dtype="fp8_w8a8", best_by_m={1: tile(16, 16)}
            ),
            "no family of experts",
        ),
    ],
)
def test_tables_without_candidates_say_why(table: TileTable, words: str) -> None:
    item = candidates_of(table)
    assert isinstance(item, Unranked) and words in item.why


def test_a_folder_and_json_lines_hold_the_same_tables(tmp_path: Path) -> None:
    table = dense("NVIDIA_H20", m1=tile(64, 128))
    written(tmp_path, table)
    row = {"kind": "dense", "N": 1024, "K": 512, "device_name": "NVIDIA_H20", "dtype": "int8_w8a8",
           "block_shape": "[128,128]", "best_by_m": {"1": tile(64, 128)}}  # fmt: skip
    lines = tmp_path / "tables.jsonl"
    lines.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'backend': 'other'})}\n", encoding="utf-8")
    assert tile_tables(tmp_path) == ([table, table], ["tables of the backend other"])
    lines.write_text('{"kind": "dense"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="line 1 is no tile table"):
        tile_tables(lines)


def test_winners_of_the_shared_tables_are_in_the_first_candidates() -> None:
    """A sample of the whole page (docs/results/transfer-winners.md): every twentieth table of vLLM 0.32."""
    if not SHARED.exists():
        pytest.skip("the shared winners of vLLM are not here")
    tables, _ = tile_tables(SHARED)
    every = [item for item in map(candidates_of, tables[::20]) if isinstance(item, Candidates)]
    _, learned, _ = first_shares(standings(every))
    assert learned >= 0.7
