"""haotuner candidates for GPUs that are not here: funnels of every family, and clear words where no code is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haotuner.spec.kernel import MicroKernel
from tests.cli.command import haotuner


def asked(device: str, op: str, cache: Path, cwd: Path, *words: str, shapes: str = "m=1..4096") -> Any:
    return haotuner("candidates", "--op", op, "--shapes", shapes, "--device", device, *words, cache=cache, cwd=cwd)


def kept(text: str) -> list[tuple[str, float]]:
    """Family and expected share of each line of what was kept."""
    lines = (line.split() for line in text.splitlines() if line.startswith("cuda_"))
    return [(MicroKernel.parse(name).family, float(share)) for name, share, *_ in lines]


def test_fp32_on_an_h200_is_all_cuda_cores(cache: Path, tmp_path: Path) -> None:
    document = asked("h200", "dense:n=2304,k=768", cache, tmp_path, "--json").json()
    assert document["device"] == "h200"
    assert {MicroKernel.parse(name).family for name in document["kept"]} == {"cuda_simt_fp32", "cuda_gemv_fp32"}
    assert [family["name"] for family in document["families"]] == ["cuda_simt_fp32", "cuda_gemv_fp32"]


def test_half_precision_on_an_h200_has_all_its_families_and_the_counts_add_up(cache: Path, tmp_path: Path) -> None:
    document = asked("h200", "dense:n=2304,k=768,dtype=bf16", cache, tmp_path, "--json").json()
    families = {family["name"]: family for family in document["families"]}
    assert (
        list(families) == ["cuda_wgmma_bf16", "cuda_wgmmas_bf16", "cuda_mma_bf16", "cuda_gemv_bf16"]
        and document["without"] == {}
    )
    for family in families.values():
        assert family["points"] == family["kept"] + sum(family["refused"].values())
    for law, count in document["refused"].items():
        assert count == sum(family["refused"].get(law, 0) for family in families.values())
    assert len(document["kept"]) == sum(family["kept"] for family in families.values())


def test_a_family_without_its_instructions_is_named_and_the_others_are_kept(cache: Path, tmp_path: Path) -> None:
    document = asked("a100-40gb", "dense:n=2304,k=768,dtype=fp16", cache, tmp_path, "--json").json()
    assert [family["name"] for family in document["families"]] == ["cuda_mma_fp16", "cuda_gemv_fp16"]
    assert "instructions refused" in document["without"]["cuda_wgmma_fp16"]


@pytest.mark.parametrize(("device", "arch"), [("mi250x", "gfx90a"), ("k80", "sm_37")])
def test_a_device_that_no_code_is_built_for_is_selected_for_and_says_so(
    device: str, arch: str, cache: Path, tmp_path: Path
) -> None:
    answer = asked(device, "dense:n=2304,k=768", cache, tmp_path)
    assert answer.code == 0
    assert f"no code is built for {device}: " in answer.out and "can be selected and predicted" in answer.out
    shares = [share for _, share in kept(answer.out)]
    assert shares == sorted(shares, reverse=True) and 0 < shares[-1] <= shares[0] <= 1
    # Few rows are bound by the weight's bytes, many by arithmetic, which tiles in shared memory feed.
    firsts = [kept(asked(device, "dense:n=2304,k=768", cache, tmp_path, shapes=f"m={m}").out)[0][0] for m in (1, 4096)]
    assert firsts == ["cuda_gemv_fp32", "cuda_simt_fp32"]


@pytest.mark.parametrize("op", ["dense:n=2304,k=768,dtype=fp16,weight=kn", "grouped:g=8,n=2304,k=768,dtype=fp16"])
def test_where_a_device_lacks_tensor_cores_of_ours_cuda_cores_are_left(op: str, cache: Path, tmp_path: Path) -> None:
    document = asked("v100", op, cache, tmp_path, "--json").json()
    (family,) = document["families"]
    assert family["name"].endswith("gemv_fp16")
    assert document["without"] and all("instructions refused" in why for why in document["without"].values())


def test_an_op_that_no_family_computes_is_refused(cache: Path, tmp_path: Path) -> None:
    answer = asked("v100", "dense:n=2304,k=768,dtype=int32", cache, tmp_path)
    assert answer.code == 2
    assert "no family computes" in answer.err and "Traceback" not in answer.err
