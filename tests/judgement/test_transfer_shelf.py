"""The shelf: which shipped model is nearest, and that what ships is whole, small and of this feature version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.cost.features import FEATURES_VERSION, features
from haotuner.transfer.kept import load_model
from haotuner.transfer.shelf import FARTHEST, Shelved, folder, near, shelf, starts
from tests.judgement.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS, SMALL_CORE

LIMIT_BYTES = 1 << 20
SHIPPED = shelf()


def put(place: Path, name: str, **changes: Any) -> None:
    device = {"id": "big-core", "kind": "cpu", "name": "x", "arch": "znver4", **BIG_CORE.numbers()}
    facts = {"model": f"{name}.txt", "family": "cpu_dense_fp32", "device": device, "features_version": FEATURES_VERSION}
    place.joinpath(f"{name}.json").write_text(json.dumps(facts | changes))


def put_both(place: Path) -> None:
    put(place, "big")
    put(place, "small", device={"id": "small-core", "kind": "cpu", "name": "y", "arch": "haswell", **SMALL_CORE.numbers()})


def test_the_nearest_device_comes_first_whatever_its_units(tmp_path: Path) -> None:
    put_both(tmp_path)
    for device, names in ((BIG_CORE, ["big", "small"]), (SMALL_CORE, ["small", "big"])):
        found = near(replace(device, compute_units=4, peak_gflops=None), "cpu_dense_fp32", tmp_path)
        assert [one.name for one in found] == names and 0 <= found[0].distance < found[1].distance <= FARTHEST


def test_a_device_starts_from_its_own_model_alone_and_any_other_from_all(tmp_path: Path) -> None:
    put_both(tmp_path)
    for name in ("big", "small"):
        own = replace(BIG_CORE, id=f"{name}-core")  # by its id, however much its rates have drifted
        assert [one.name for one in starts(own, "cpu_dense_fp32", tmp_path)] == [name]
    assert [one.name for one in starts(replace(BIG_CORE, id="new"), "cpu_dense_fp32", tmp_path)] == ["big", "small"]


@pytest.mark.parametrize("changes", [{"family": "other"}, {"features_version": FEATURES_VERSION + 1}])
def test_models_of_another_family_or_feature_version_are_passed_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    put(tmp_path, "big", **changes)
    assert near(BIG_CORE, "cpu_dense_fp32", tmp_path) == starts(BIG_CORE, "cpu_dense_fp32", tmp_path) == ()


def test_damaged_provenance_is_said(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_text("{}")
    with pytest.raises(ValueError, match="does not say"):
        shelf(tmp_path)


def test_what_ships_is_small_and_covers_three_instruction_sets() -> None:
    assert {one.device.id.rpartition("-")[2] for one in SHIPPED} >= {"avx512", "avx2", "sse"}
    assert sum(path.stat().st_size for path in folder().iterdir()) < LIMIT_BYTES


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_a_shipped_model_is_whole_and_says_where_it_is_from(one: Shelved) -> None:
    facts = one.facts
    assert {"ops", "rows", "date", "states", "held_out_ops", "analytic"} <= facts.keys()
    assert facts["features_version"] == FEATURES_VERSION, "fit them again: python -m tests.bench.ship_models"
    assert hashlib.sha256(one.path.read_bytes()).hexdigest() == facts["sha256"]
    assert facts["held_out_ops"]["pairwise"] > facts["analytic"]["pairwise"]
    said = load_model(one.path).predict(features(BIG_CORE, CPU_DENSE, OP, PAIRS))
    assert np.isfinite(said).all() and np.ptp(said) > 0
