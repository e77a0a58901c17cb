"""Models that ship: which shipped model is nearest, and that what ships is whole, small and of this feature version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.cost.features import NAMES, features, recorded_versions, versions, why_outdated
from haotuner.transfer.models_shipped import ShippedModel, ShippedModels, folder, models_shipped, near, starting_models
from haotuner.transfer.saved_model import load_model
from haotuner.transfer.similarity import FARTHEST
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS, SMALL_CORE

LIMIT_BYTES = 200_000  # of one model: what trees and leaves need, without LightGBM's statistics
SHIPPED = models_shipped()
DEVICE = {"id": "big-core", "kind": "cpu", "name": "x", "arch": "znver4", **BIG_CORE.numbers()}


def put(models_folder: Path, name: str, **changes: Any) -> None:
    models_folder.joinpath(f"{name}.json").write_bytes(provenance(name, **changes))


def provenance(name: str, **changes: Any) -> bytes:
    """What lies beside a model of the big core; a key that is changed to None is lacking."""
    facts = {"model": f"{name}.txt", "family": "cpu_dense_fp32", "device": DEVICE, "columns": versions(NAMES)}
    return json.dumps({key: value for key, value in (facts | changes).items() if value is not None}).encode()


def put_both(models_folder: Path) -> None:
    put(models_folder, "big")
    put(
        models_folder,
        "small",
        device={"id": "small-core", "kind": "cpu", "name": "y", "arch": "haswell", **SMALL_CORE.numbers()},
    )


def test_the_nearest_device_comes_first_whatever_its_units(tmp_path: Path) -> None:
    put_both(tmp_path)
    for device, names in ((BIG_CORE, ["big", "small"]), (SMALL_CORE, ["small", "big"])):
        nearest = near(replace(device, compute_units=4, peak_gflops=None), "cpu_dense_fp32", tmp_path)
        assert [model.name for model in nearest.models] == names
        assert 0 <= nearest.models[0].distance < nearest.models[1].distance <= FARTHEST


def test_a_device_starts_from_its_own_model_alone_and_any_other_from_all(tmp_path: Path) -> None:
    put_both(tmp_path)
    for name in ("big", "small"):
        own = replace(BIG_CORE, id=f"{name}-core")  # by its id, however much its rates have drifted
        assert [model.name for model in starting_models(own, "cpu_dense_fp32", tmp_path).models] == [name]
    new = replace(BIG_CORE, id="new")
    assert [model.name for model in starting_models(new, "cpu_dense_fp32", tmp_path).models] == ["big", "small"]


@pytest.mark.parametrize("changes", [{"family": "other"}, {"columns": {"pipes": 9}}, {"columns": {"gone": 1}}])
def test_models_of_another_family_or_feature_version_are_passed_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    put(tmp_path, "big", **changes)
    assert (
        near(BIG_CORE, "cpu_dense_fp32", tmp_path)
        == starting_models(BIG_CORE, "cpu_dense_fp32", tmp_path)
        == ShippedModels(models=())
    )


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1]", b"\xff\xfe", b"{}"),
        *(provenance("a", **{key: None}) for key in ("device", "family", "model", "columns")),
        *(provenance("a", device=device) for device in ({"id": "x"}, DEVICE | {"odd": 1}, DEVICE | {"compute_units": 0})),
    ],
)
def test_damaged_provenance_takes_no_other_model_away_and_is_said(tmp_path: Path, content: bytes) -> None:
    put_both(tmp_path)
    (tmp_path / "a.json").write_bytes(content)
    for shipped in (
        models_shipped(tmp_path),
        near(BIG_CORE, "cpu_dense_fp32", tmp_path),
        starting_models(BIG_CORE, "cpu_dense_fp32", tmp_path),
    ):
        assert {model.name for model in shipped.models} <= {"big", "small"} and shipped.models
        [damage] = shipped.damaged
        assert str(tmp_path / "a.json") in damage and "does not say" in damage


def test_a_provenance_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    assert len(models_shipped(tmp_path).damaged) == 1


def test_what_ships_is_small_and_covers_three_instruction_sets() -> None:
    assert {model.device.id.rpartition("-")[2] for model in SHIPPED.models} >= {"avx512", "avx2", "sse"}
    assert not SHIPPED.damaged
    assert max(path.stat().st_size for path in folder().iterdir()) < LIMIT_BYTES


@pytest.mark.parametrize("model", SHIPPED.models, ids=lambda model: model.name)
def test_a_shipped_model_is_whole_and_says_where_it_is_from(model: ShippedModel) -> None:
    facts = model.facts
    assert {"ops", "rows", "date", "states", "held_out_ops", "analytic"} <= facts.keys()
    assert not why_outdated(recorded_versions(facts)), "fit them again: python -m tests.bench.ship_models"
    assert hashlib.sha256(model.path.read_bytes()).hexdigest() == facts["sha256"]
    assert facts["held_out_ops"]["pairwise"] > facts["analytic"]["pairwise"]
    scores = load_model(model.path).predict(features(BIG_CORE, CPU_DENSE, OP, PAIRS))
    assert np.isfinite(scores).all() and np.ptp(scores) > 0


def test_what_was_learnt_without_tiles_is_no_start_with_them(tmp_path: Path) -> None:
    with_tiles = replace(BIG_CORE, tensor_tflops=40.0)
    for dtype, expected in (("bf16", 0), ("int8", 0), ("fp16", 1), ("fp32", 1)):
        put(tmp_path, dtype, family=f"cpu_dense_{dtype}")
        assert len(near(with_tiles, f"cpu_dense_{dtype}", tmp_path).models) == expected
        assert len(near(BIG_CORE, f"cpu_dense_{dtype}", tmp_path).models) == 1
