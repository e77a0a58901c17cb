"""A saved model names the columns it uses: it survives new ones and refuses what is computed differently."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from haotuner.cost import features as columns
from haotuner.cost import model_file
from haotuner.cost.features import FEATURES, NAMES, features, recorded_versions, versions, why_outdated
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Analytic
from haotuner.cost.model_file import save
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.transfer.models_shipped import folder, models_shipped, near
from haotuner.transfer.saved_model import load_model
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS, SMALL_CORE, Named

FRAME = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
LABELS = np.asarray(FRAME["expected_log"] - 0.2 * FRAME["tile_rows_log2"])
FEW = Settings(columns=("tile_rows_log2", "tile_cols_log2", "depth_log2"))
GOLDEN = Path(__file__).parents[1] / "golden" / "cost" / "features.json"


def few(path: Path) -> Forest:
    model = Forest(settings=FEW).fit(FRAME, LABELS)
    save(model, path)
    return model


def header(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes().split(b"\n", 2)[1]))


def test_a_saved_model_names_the_columns_it_uses_and_no_others(tmp_path: Path) -> None:
    few(tmp_path / "model")
    assert header(tmp_path / "model")["columns"] == versions((*FEW.columns, "expected_log"))


def test_a_model_predicts_the_same_whatever_other_columns_a_frame_has_and_in_whatever_order(tmp_path: Path) -> None:
    model = few(tmp_path / "model")
    again = load_model(tmp_path / "model")
    wider = FRAME.assign(a_new_one=np.nan, another=1.0)[[*reversed(NAMES), "another", "a_new_one"]]
    for frame in (FRAME, wider, FRAME[[*FEW.columns, "expected_log"]]):
        assert (again.predict(frame) == model.predict(FRAME)).all()
    assert (Analytic().predict(wider) == Analytic().predict(FRAME)).all()
    with pytest.raises(ValueError, match="not the features that the model uses; it lacks depth_log2"):
        again.predict(FRAME.drop(columns="depth_log2"))


def test_a_column_more_or_a_new_formula_elsewhere_retires_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = few(tmp_path / "model")
    grown = {**columns._VERSIONS, "a_new_one": 1, "streams": 2}
    grown.pop("flags")
    monkeypatch.setattr(columns, "_VERSIONS", grown)
    assert (load_model(tmp_path / "model").predict(FRAME) == model.predict(FRAME)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known: known.update(depth_log2=2), r"computed differently now \(depth_log2\)"),
        (lambda known: known.pop("tile_rows_log2"), r"not computed any more \(tile_rows_log2\)"),
        (lambda known: known.update(expected_log=5), r"computed differently now \(expected_log\)"),
    ],
)
def test_another_formula_of_a_column_it_uses_retires_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, int]], object], message: str
) -> None:
    few(tmp_path / "model")
    known = dict(columns._VERSIONS)
    change(known)
    monkeypatch.setattr(columns, "_VERSIONS", known)
    with pytest.raises(UsageError, match=f"{message}.*haotuner transfer fit"):
        load_model(tmp_path / "model")


def as_before(path: Path, **changes: Any) -> Path:
    """The model in the file as it was written when all columns together had one version."""
    magic, head, rest = path.read_bytes().split(b"\n", 2)
    old = json.loads(head)
    del old["columns"]
    content = json.dumps({**old, "features": list(NAMES), "features_version": 7} | changes).encode() + b"\n" + rest
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(model_file._OLD_MAGIC.encode() + b" " + digest + b"\n" + content)
    return path


def test_files_from_before_columns_had_versions_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = few(tmp_path / "model")
    path = as_before(tmp_path / "model")
    assert (load_model(path).predict(FRAME) == model.predict(FRAME)).all()
    monkeypatch.setattr(columns, "_VERSIONS", {**columns._VERSIONS, "a_new_one": 1, "streams": 2})
    assert (load_model(path).predict(FRAME) == model.predict(FRAME)).all()
    monkeypatch.setattr(columns, "_VERSIONS", {**columns._VERSIONS, "tile_cols_log2": 2})
    with pytest.raises(UsageError, match=r"computed differently now \(tile_cols_log2\)"):
        load_model(path)


def test_files_of_another_version_of_all_columns_are_refused(tmp_path: Path) -> None:
    few(tmp_path / "model")
    with pytest.raises(UsageError, match="not computed any more .features of version 6.*transfer fit"):
        load_model(as_before(tmp_path / "model", features_version=6))


def test_shipped_models_outlive_a_new_column_and_are_passed_over_by_a_new_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    family = "cpu_dense_fp32"
    everyone = [model for model in models_shipped().models if model.family == family]
    nearest = near(everyone[0].device, family)
    assert len(nearest.models) == len(everyone) == 6
    monkeypatch.setattr(columns, "_VERSIONS", {**columns._VERSIONS, "a_new_one": 1})
    assert near(everyone[0].device, family) == nearest
    monkeypatch.setattr(columns, "_VERSIONS", {**columns._VERSIONS, "tile_rows_log2": 2})
    assert near(everyone[0].device, family).models == ()


def test_the_provenance_of_a_shipped_model_names_the_columns_that_its_file_uses() -> None:
    for path in folder().glob("*.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        assert recorded_versions(facts) == dict.fromkeys(model_file.read(path.with_suffix(".txt")).columns, 1)
        assert why_outdated(recorded_versions(facts)) == ""


H100, W6600 = (find_device(name, measure=False) for name in ("h100", "w6600"))
SIMT = MicroKernel("cuda_simt_fp32", tuple(dict(bm=64, bn=64, bk=16, tm=8, tn=8, v=4, kn=0).items()))
EXAMPLES: tuple[tuple[Device, str, Op, list[tuple[MicroKernel, Shape]]], ...] = (
    (replace(BIG_CORE, compute_units=2), "cpu_dense_fp32", OP, PAIRS),
    (SMALL_CORE, "cpu_dense_fp32", Op.parse("dense_n388_k4096"), PAIRS),
    *((device, "cuda_simt_fp32", OP, [(SIMT, Shape.of(m=m)) for m in (1, 100, 5000)]) for device in (H100, W6600)),
)


def told_now() -> dict[str, dict[str, Any]]:
    frame = pd.concat([features(device, Named(name), op, pairs) for device, name, op, pairs in EXAMPLES])
    return {
        feature.name: {
            "version": feature.version,
            "values": [float(f"{value:.9g}") for value in frame[feature.name].iloc[:: max(1, len(frame) // 40)]],
        }
        for feature in FEATURES
    }


def test_a_feature_that_gives_other_numbers_has_another_version() -> None:
    """Mend the golden with the version: ``python -m tests.cost.test_cost_columns``."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for name, now in told_now().items():
        assert name in golden, f"a new feature: write the golden again; {name}"
        same = np.allclose(now["values"], golden[name]["values"], rtol=1e-7, atol=1e-12)
        assert same == (now["version"] == golden[name]["version"]), f"{name} gives other numbers: raise its version"


def write_golden() -> None:
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    lines = (f" {json.dumps(name)}: {json.dumps(values)}" for name, values in told_now().items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
