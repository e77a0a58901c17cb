"""Manifests that were changed and sealed again: whatever opens them serves right or refuses in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.cli.explain_model import model_document, print_model
from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import as_json
from haotuner.verify.pack_check import not_verified, verify
from tests.runtime.model_packs import model_pack
from tests.runtime.packs import put_manifest

KERNEL = {"output": "y", "primitives": ["add"], "us": 1.5}
WAY = {"where": "any sizes", "us": 2.0, "requests": [{"batch": 3}], "one_plan_us": 3.0, "own_kernels": 1}
REGION = {"outputs": ["y"], "chosen": [KERNEL], "greedy": [KERNEL]}
PREDICTED = {"1": {"batch=3": {"all": 2.0}}}
PLAN = {"status": "optimal", "measured": 2, "requests": 1, "regions": [REGION], "predicted_us": PREDICTED, "ways": [WAY]}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2,
    2**31,
    2**63,
    2**64,
    1e308,
    0.5,
    "",
    "x",
    "../x",
    "\u202e",
    "é",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = GraphBuilder()
    x = g.input("x", (dimension("batch"), 16))
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    y = g.add("contract", x, g.constant(weight), labels="bk,kn->bn")
    path = model_pack(tmp_path_factory.mktemp("sealed") / "pack", {"net": g.finish(g.map("mul", y, y))})
    document = json.loads((path / "manifest.json").read_bytes())
    ranges = {"net": {"batch": [1, 8]}}
    document["tuning"] = {"shapes": "batch=1..8", "seconds": 2.0, "models": {"net": PLAN}, "model_ranges": ranges}
    put_manifest(path, as_json(document))
    return path


X = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)


def everything(pack: Path, *, numbers: bool) -> Any:
    """What people and servers do with a pack; the model's answer."""
    manifest = read_manifest(pack)
    _ = manifest.driver, manifest.tuning, manifest.on_device, manifest.whole_document
    for model in manifest.models:
        print_model(model_document(manifest, model, ""), every=True)
    with haotuner.load(pack, threads=1) as opened:
        model = opened.model("net")
        assert model.memory_bytes(batch=3) >= 0 and opened.stats() and model.stats()
        outputs = model.run({"x": X})
        for op in opened.ops:
            if op.startswith("dense"):
                weight = np.ones((16, 16), np.float32)
                opened.op(op).bind(weight)(X)
    if numbers:
        problems = verify(pack, most_flops=1e6)
        assert all(isinstance(problem, str) for problem in problems)
        not_verified(pack)
    return next(iter(outputs.values()))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


def changed(document: Any, draw: np.random.Generator) -> Any:
    """A copy with one value exchanged or left out."""
    every = [path for path in places(document) if path]
    *outer, last = every[int(draw.integers(len(every)))]
    altered = json.loads(json.dumps(document))
    inner = altered
    for key in outer:
        inner = inner[key]
    if draw.random() < 0.25:
        del inner[last]
    else:
        inner[last] = VALUES[int(draw.integers(len(VALUES)))]
    return altered


def fuzzed(pack: Path, seeds: range, *, numbers: bool) -> tuple[int, int]:
    """How many changes were served, and how many refused."""
    sound = json.loads((pack / "manifest.json").read_bytes())
    expected, served, refused = everything(pack, numbers=False), 0, 0
    for seed in seeds:
        document = changed(sound, np.random.default_rng(seed))
        put_manifest(pack, as_json(document))
        try:
            answer = everything(pack, numbers=numbers)
        except HaotunerError as error:
            refused += 1
            assert str(error), seed
        except ValueError as error:  # a layer that is bound to a weight of another shape
            refused += 1
            assert "weight" in str(error), (seed, error)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        else:
            served += 1
            assert np.array_equal(answer, expected), seed
    return served, refused


def test_changed_and_sealed_manifests_are_served_right_or_refused_in_words(pack, tmp_path):
    served, refused = fuzzed(Path(shutil.copytree(pack, tmp_path / "pack")), range(80), numbers=False)
    assert served > 5 and refused > 10


def test_a_packed_weight_of_another_size_than_the_library_makes_is_refused(pack, tmp_path):
    served, refused = fuzzed(Path(shutil.copytree(pack, tmp_path / "pack")), range(1493, 1494), numbers=True)
    assert (served, refused) == (0, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_changed_and_sealed_manifests(pack, tmp_path):
    served, refused = fuzzed(Path(shutil.copytree(pack, tmp_path / "pack")), range(1000, 1600), numbers=True)
    assert served > 40 and refused > 100


def kernel_of(document: Any) -> Any:
    return document["tuning"]["models"]["net"]["regions"][0]["chosen"][0]


CHANGES: dict[str, tuple[Any, str]] = {
    "no panels": (lambda d: d["ops"][0]["operands"][1].pop("packed"), "reads panels of a weight"),
    "other panels": (lambda d: d["ops"][0]["operands"][1].update(packed={"pw": 8}), "panels"),
    "ranges are texts": (lambda d: d["tuning"]["model_ranges"]["net"].update(batch=["1", "8"]), "model_ranges.net.batch"),
    "one end of a range": (lambda d: d["tuning"]["model_ranges"]["net"].update(batch=[1]), "pairs of numbers"),
    "ranges are a list": (lambda d: d["tuning"].update(model_ranges=[]), "model_ranges must be an object"),
    "primitives are a number": (lambda d: kernel_of(d).update(primitives=3), "primitives"),
    "a plan is a text": (lambda d: d["tuning"]["models"].update(net="x"), "models.net must be an object"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_facts_of_another_type_are_refused(pack, tmp_path, what):
    copy = Path(shutil.copytree(pack, tmp_path / "pack"))
    change, message = CHANGES[what]
    document = json.loads((copy / "manifest.json").read_bytes())
    change(document)
    put_manifest(copy, as_json(document))
    with pytest.raises(PackInvalid, match=message):
        read_manifest(copy)


def test_a_plan_that_is_not_whole_is_told(pack, tmp_path):
    copy = Path(shutil.copytree(pack, tmp_path / "pack"))
    document = json.loads((copy / "manifest.json").read_bytes())
    del kernel_of(document)["us"]
    put_manifest(copy, as_json(document))
    with pytest.raises(UsageError, match="is not whole"):
        model_document(read_manifest(copy), "net", "")


@pytest.mark.parametrize("size", [-1, 2**41, 2**63, 2**64])
def test_sizes_that_no_tensor_has_are_told(pack, size):
    with haotuner.load(pack, threads=1) as opened, pytest.raises(UsageError, match="batch=.* is no size of a tensor"):
        opened.model("net").memory_bytes(batch=size)


@pytest.mark.parametrize("what", ["missing", "a folder", "cut", "grown", "a bit"])
def test_verify_of_damaged_weights_says_so(pack, tmp_path, what, capsys):
    from haotuner.pack.__main__ import main

    copy = Path(shutil.copytree(pack, tmp_path / "pack"))
    path = copy / "models" / "net.weights"
    data = path.read_bytes()
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes({"cut": data[:-1], "grown": data + b"\0", "a bit": bytes([data[0] ^ 1]) + data[1:]}[what])
    assert main(["verify", str(copy), "--most-flops", "1e5"]) == 5
    assert "model net:" in capsys.readouterr().err
