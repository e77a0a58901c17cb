"""Trees that no LightGBM wrote: refused in words before they reach it, whatever hash the file has."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.cost import model_file
from haotuner.cost.features import NAMES, features
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model_file import Saved, check_trees, write
from haotuner.errors import UsageError
from haotuner.transfer.saved_model import load_model, save_model
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS

FRAME = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
LABELS = FRAME["expected_log"] - 0.2 * FRAME["tile_rows_log2"]
MODELS = Path(model_file.__file__).resolve().parents[2] / "transfer" / "models"


@pytest.fixture(scope="module", params=[None, 0.01], ids=["plain", "linear"])
def grown(request: pytest.FixtureRequest) -> Forest:
    return Forest(settings=Settings(linear=request.param)).fit(FRAME, LABELS)


@pytest.fixture(scope="module")
def text(grown: Forest) -> str:
    return grown.state()[1][0]


def edited(text: str, key: str, change: Any) -> str:
    """The text with another value of a key of tree 2, and the sizes of the head that fit."""
    head, _, rest = text.partition("\n\n")
    sizes = [int(size) for size in re.findall(r"tree_sizes=(.*)", head)[0].split()]
    at = sum(sizes[:2])
    old = rest[at : at + sizes[2]]
    new = re.sub(rf"^{key}=(.*)$", lambda match: f"{key}={change(match[1])}", old, count=1, flags=re.MULTILINE)
    assert new != old, "nothing was changed"
    sizes[2] = len(new)
    head = re.sub(r"tree_sizes=.*", f"tree_sizes={' '.join(map(str, sizes))}", head)
    return f"{head}\n\n{rest[:at]}{new}{rest[at + len(old) :]}"


def place(at: int, value: Any) -> Any:
    def change(words: str) -> str:
        values = words.split()
        values[at] = str(value)
        return " ".join(values)

    return change


def test_what_lightgbm_writes_passes(grown: Forest, text: str) -> None:
    check_trees(text)
    check_trees(Forest().fit(FRAME[:9], LABELS[:9]).state()[1][0])  # some trees of few rows have a single leaf


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.txt")), ids=lambda path: path.stem)
def test_shipped_models_pass(path: Path) -> None:
    assert load_model(path)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("left_child", place(1, 0), "above it: no tree"),  # a ring: LightGBM walks it without end
        ("left_child", place(0, 0), "above it: no tree"),
        ("right_child", place(0, -1), "another parent"),
        ("left_child", place(0, 10**8), "expected a whole number"),
        ("right_child", place(0, -(10**8)), "expected a whole number"),
        ("right_child", place(0, 99999999999999999999), "expected a whole number"),
        ("num_leaves", lambda _: 2_000_000_000, "num_leaves holds 2000000000"),  # LightGBM ends the process
        ("num_leaves", lambda _: 0, "num_leaves holds 0"),
        ("num_leaves", lambda leaves: int(leaves) + 1, "values, expected"),
        ("split_feature", place(0, len(NAMES) + 1), "split_feature holds"),  # reads beyond the row
        ("split_feature", place(0, -1), "split_feature holds -1"),
        ("threshold", place(0, "nan"), "threshold holds nan"),
        ("threshold", place(0, "inf"), "threshold holds inf"),
        ("threshold", lambda words: words.rpartition(" ")[0], "values, expected"),
        ("leaf_value", place(0, "nan"), "leaf_value holds nan"),
        ("leaf_value", place(0, "1e999"), "leaf_value holds 1e999"),
        ("decision_type", place(0, 3), "not that of a number"),  # a category: read from a list that is not there
        ("num_cat", lambda _: 1, "num_cat '1'"),
        ("is_linear", lambda _: 2, "is_linear '2'"),
        ("shrinkage", lambda _: "x", "shrinkage holds x"),
    ],
)
def test_a_tree_that_is_none_is_refused(text: str, key: str, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"tree 2: .*{message}"):
        check_trees(edited(text, key, change))


@pytest.mark.parametrize(
    ("key", "change"),
    [("leaf_features", place(0, 10**6)), ("num_features", place(0, 40000)), ("leaf_coeff", place(0, "nan"))],
)
def test_lines_in_leaves_are_checked_too(key: str, change: Any) -> None:
    forest = Forest(settings=Settings(linear=0.01)).fit(FRAME, LABELS)
    with pytest.raises(ValueError, match="tree 2: leaf_|tree 2: num_features"):
        check_trees(edited(forest.state()[1][0], key, change))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"num_class=1", "num_class=7"),
        (r"num_tree_per_iteration=1", "num_tree_per_iteration=3"),
        (r"max_feature_idx=[0-9]+", "max_feature_idx=3"),
        (r"version=v4", "version=v9"),
        (r"label_index=0", "average_output"),
        (r"feature_infos=\S+", "feature_infos=0:1:2"),
        (r"parameters:", "parameters:\n[data: x"),
        (r"num_leaves=", "num_leaves=3\nnum_leaves="),
        (r"leaf_value=", "leaf_weight_of_gold="),
    ],
)
def test_a_head_or_a_line_that_is_not_of_such_a_file_is_refused(text: str, old: str, new: str) -> None:
    with pytest.raises(ValueError, match=".+"):
        check_trees(re.sub(old, new, text, count=1))


def test_a_hostile_file_of_a_right_hash_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    forest = Forest().fit(FRAME, LABELS)
    state, (text,) = forest.state()
    path = tmp_path / "model"
    write(path, Saved(kind="forest", state=state, texts=(edited(text, "left_child", place(1, 0)),)))
    body = path.read_bytes().partition(b"\n")[2]
    assert path.read_bytes().startswith(f"haotuner-model-2 {hashlib.sha256(body).hexdigest()}\n".encode())
    assert json.loads(body.partition(b"\n")[0])["kind"] == "forest"
    with pytest.raises(UsageError, match=r"damaged: .* tree 2: node 1 .*no tree; make it again with: haotuner transfer fit"):
        load_model(path)


def test_a_pipe_as_a_model_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model")
    with pytest.raises(UsageError, match="cannot read the model .*: it is a pipe, not a regular file"):
        load_model(tmp_path / "model")


def test_a_model_larger_than_any_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "SIZE_LIMIT_BYTES", 1 << 20)
    with (tmp_path / "model").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="cannot read the model .*more than 1 MiB"):
        load_model(tmp_path / "model")


def test_a_model_is_opened_as_it_was_saved(grown: Forest, tmp_path: Path) -> None:
    save_model(grown, tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict(FRAME), grown.predict(FRAME))
