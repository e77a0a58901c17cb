"""Saved models of a right hash that hold what haotuner never writes: an error that says so, never a traceback."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from haotuner.cost.features import NAMES, OPTIONAL_NAMES, features
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model_file import Saved, write
from haotuner.errors import UsageError
from haotuner.transfer.fit import fit_model
from haotuner.transfer.saved_model import load_model, save_model
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, read

pytestmark = pytest.mark.long

Header = dict[str, Any]
FRAME = features(BIG_CORE, CPU_DENSE, OP, PAIRS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a plain forest, of a model without target records, and of one with."""
    path = tmp_path_factory.mktemp("saved") / "model"
    models = {
        "forest": Forest().fit(FRAME, FRAME["expected_log"] - 0.2 * FRAME["tile_rows_log2"]),
        "zero-shot": fit_model(read(WIDE, NARROW), COUSIN).model,
        "own records": fit_model(read(WIDE, NARROW, COUSIN), COUSIN).model,
    }
    contents = {}
    for name, model in models.items():
        save_model(model, path)
        contents[name] = path.read_bytes()
    return contents


def changed(raw: bytes, path: Path, change: Callable[[Header], object], body: Callable[[bytes], bytes] = bytes) -> Path:
    """The file with another header or body, and the hash that fits them."""
    magic, head, rest = raw.split(b"\n", 2)
    header = json.loads(head)
    change(header)
    content = json.dumps(header).encode() + b"\n" + body(rest)
    path.write_bytes(magic.split()[0] + b" " + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}.*haotuner transfer fit"):
        load_model(path)


@pytest.mark.parametrize("kind", ["forest", "zero-shot", "own records"])
def test_what_is_not_changed_is_opened(saved: dict[str, bytes], kind: str, tmp_path: Path) -> None:
    path = changed(saved[kind], tmp_path / "model", lambda header: None)
    assert np.isfinite(load_model(path).predict(FRAME)).all()


@pytest.mark.parametrize("kind", ["forest", "zero-shot", "own records"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *product(["kind"], [None, 5, []]),
        *product(["state"], [{}, [], None, "text"]),
        *product(["lengths"], [None, "text", [], [1], ["1"], [-1], [None], [True]]),
        *product(["columns"], [None, 7, "text", [None], {}, {NAMES[0]: "1"}, {NAMES[0]: True}]),
    ],
)
def test_an_odd_header_is_damage(saved: dict[str, bytes], kind: str, key: str, value: Any, tmp_path: Path) -> None:
    refused(changed(saved[kind], tmp_path / "model", lambda header: header.update({key: value})), "damaged")


def test_lengths_that_cut_trees_apart_are_damage_and_not_the_end_of_the_process(
    saved: dict[str, bytes], tmp_path: Path
) -> None:
    for shift in (-1, 1, 5000):

        def move(header: Header, shift: int = shift) -> None:
            first, second, *rest = header["lengths"]
            header["lengths"] = [first - shift, second + shift, *rest]

        refused(changed(saved["zero-shot"], tmp_path / "model", move), "damaged.*no whole forest")


def test_trees_that_are_no_text_or_were_cut_are_damage(saved: dict[str, bytes], tmp_path: Path) -> None:
    for body in (
        lambda rest: b"\xff" + rest[1:],
        lambda rest: rest.replace(b"Tree=3\n", b"Tree=4\n", 1),
        lambda rest: b"x" * len(rest),
    ):
        path = changed(saved["forest"], tmp_path / "model", lambda header: None, body)
        refused(path, "damaged.*no whole forest")


@pytest.mark.parametrize(("kind", "other"), [("forest", "zero-shot"), ("zero-shot", "forest")])
def test_a_kind_that_the_state_is_not_of_is_damage(saved: dict[str, bytes], kind: str, other: str, tmp_path: Path) -> None:
    name = json.loads(saved[other].split(b"\n", 2)[1])["kind"]
    refused(
        changed(saved[kind], tmp_path / "model", lambda header: header.update(kind=name)), "damaged.*do not fit together"
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "text", None])
def test_weights_of_sources_that_are_no_numbers_are_damage(saved: dict[str, bytes], bad: Any, tmp_path: Path) -> None:
    for kind in ("zero-shot", "own records"):
        path = changed(saved[kind], tmp_path / "model", lambda header: header["state"]["sources"].update(weights=[bad, 0.5]))
        refused(path, "damaged")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *product(["memories"], [[["AAAA", "AAAA"]] * 2, [["", "AAAAAAAA8D8="]] * 2, []]),
        *product(["scales"], [[[0, 1]], [[0, 0]] * 2]),
        ("weights", [1]),
    ],
)
def test_parts_that_do_not_fit_together_are_damage(saved: dict[str, bytes], key: str, value: Any, tmp_path: Path) -> None:
    path = changed(saved["zero-shot"], tmp_path / "model", lambda header: header["state"]["sources"].update({key: value}))
    refused(path, "damaged")


@pytest.mark.parametrize("odd", [{"columns": NAMES[:3]}, {"columns": ["moon_phase"]}, {"leafs": 3}])
def test_settings_that_do_not_fit_the_trees_are_damage(saved: dict[str, bytes], odd: dict[str, Any], tmp_path: Path) -> None:
    path = changed(saved["forest"], tmp_path / "model", lambda header: header["state"]["settings"].update(odd))
    refused(path, "damaged.*do not fit together")


def test_a_number_beyond_all_floats_is_damage(saved: dict[str, bytes], tmp_path: Path) -> None:
    magic, head, rest = saved["forest"].split(b"\n", 2)
    content = head.replace(b'"learning_rate": 0.1', b'"learning_rate": 1e999') + b"\n" + rest
    path = tmp_path / "model"
    path.write_bytes(magic.split()[0] + b" " + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    refused(path, "damaged.*1e999 is no finite number")


def test_columns_that_are_not_computed_are_named(saved: dict[str, bytes], tmp_path: Path) -> None:
    for kind in saved:
        path = changed(saved[kind], tmp_path / "model", lambda header: header["columns"].update(moon_phase=1))
        refused(path, r"not computed any more \(moon_phase\)")


def test_columns_that_the_trees_use_and_the_header_does_not_name_are_damage(saved: dict[str, bytes], tmp_path: Path) -> None:
    path = changed(saved["forest"], tmp_path / "model", lambda header: header["columns"].pop(NAMES[-1]))
    refused(path, f"damaged.*do not fit together.*{NAMES[-1]}")


def test_a_pipe_or_a_folder_is_not_replaced_by_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "file" / "x", Path(), Path("/"), tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match="cannot write the model"):
            write(path, Saved(kind="forest", state={}, texts=()))
    assert (tmp_path / "pipe").is_fifo() and {path.name for path in tmp_path.iterdir()} == {"pipe", "file"}


def test_a_column_that_some_families_lack_is_told_apart_after_saving(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((400, len(NAMES))), columns=list(NAMES))
    frame.loc[::2, list(OPTIONAL_NAMES)] = np.nan
    labels = np.where(frame["streams"].isna(), 1.0, -1.0)
    forest = Forest(settings=Settings(columns=("streams", "expected_log"), slope=0.0, trees=20)).fit(frame, labels)
    save_model(forest, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(frame), forest.predict(frame)) and again.predict(frame)[0] > again.predict(frame)[1]
