"""`haotuner explain PACK --model MODEL`: regions, kernels and times, and what is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.cli.explain_model import model_document, print_model
from haotuner.errors import UsageError


def kernel(output: str, us: float, *primitives: str) -> dict[str, Any]:
    return {"output": output, "us": us, "primitives": list(primitives)}


def manifest() -> Any:
    apart = {"outputs": ["y"], "chosen": [kernel("y", 4.0, "map", "reduce")],
             "greedy": [kernel("s", 3.0, "reduce"), kernel("y", 3.5, "map")]}  # fmt: skip
    alike = {"outputs": ["z"], "chosen": [kernel("z", 1.0, "map")], "greedy": [kernel("z", 1.0, "map")]}
    plan = {"status": "optimal", "measured": 4, "requests": 6, "regions": [apart, alike]}
    return SimpleNamespace(tuning={"models": {"net": plan}})


def test_regions_that_differ_are_shown_with_both_plans(capsys: pytest.CaptureFixture[str]) -> None:
    print_model(model_document(manifest(), "net", ""), every=False)
    shown = capsys.readouterr().out
    assert "4 kernels measured" in shown and "region of y: 4.0 us, greedily 6.5" in shown and "region of z" not in shown


def test_bound_plan_and_greedy_plan_are_shown_where_the_pack_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_model(model_document(manifest(), "net", ""), every=False)
    assert "no plan under" not in capsys.readouterr().out
    written = manifest()
    written.tuning["models"]["net"]["us"] = {"bound": 4.5, "chosen": 5.0, "greedy": 7500.0}
    print_model(model_document(written, "net", ""), every=False)
    assert "optimal: 5 us; no plan under 4; greedy fusion 7,500" in capsys.readouterr().out


def test_one_region_is_shown_by_any_tensor_that_a_kernel_makes(capsys: pytest.CaptureFixture[str]) -> None:
    print_model(model_document(manifest(), "net", "z"), every=True)
    shown = capsys.readouterr().out
    assert "region of z: 1.0 us, greedily 1.0" in shown and "region of y" not in shown
    assert [region["outputs"] for region in model_document(manifest(), "net", "s")["regions"]] == [["y"]]


def test_a_kernel_of_several_outputs_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    pack = manifest()
    pack.tuning["models"]["net"]["regions"][1]["chosen"][0]["beside"] = ["sum"]
    print_model(model_document(pack, "net", "sum"), every=False)
    assert "z, sum" in capsys.readouterr().out, "found by it, and told apart from greedy fusion's"


def test_what_the_pack_does_not_know_is_said() -> None:
    with pytest.raises(UsageError, match="it does of net"):
        model_document(manifest(), "other", "")
    with pytest.raises(UsageError, match="no kernel of net makes it; .*s, y, z"):
        model_document(manifest(), "net", "q")
