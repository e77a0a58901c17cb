"""Op kinds of installed packages: found by entry points, and a broken one is an error of its own name alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from haotuner.errors import NothingLegal, UsageError
from haotuner.microkernels.index import families_for, family_named
from haotuner.ops import index
from haotuner.ops.index import kind_in, kind_named, kind_names
from haotuner.spec.op import Op

ROW_SUM = """
import numpy as np
from haotuner.ops.formula import Load, Reduce
from haotuner.ops.kind import OpKind, plain, sum_rounding

ROW_SUM = OpKind(
    name="own_row_sum", meaning="Y[m] = sum over n of X[m,n]", axes={"m": "spatial", "n": "reduction"},
    operands=(plain("x", "input", "m", "n"), plain("y", "output", "m")), flops=lambda e: e["m"] * e["n"],
    formula=Reduce("sum", "n", Load("x")), exact=True, example="own_row_sum:",
    tolerance=lambda inputs, options: sum_rounding(inputs["x"].shape[1]) * np.abs(inputs["x"]).sum(axis=1),
)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a package's module, and what an installer writes beside it."""
    facts = tmp_path / "own_ops-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-ops\nVersion: 1.0\n")
    points = {"own_row_sum": "own_ops:ROW_SUM", "own_absent": "own_ops:NOTHING", "own_number": "own_ops:np",
              "own_other": "own_ops:ROW_SUM", "dense_own": "own_ops:ROW_SUM"}  # fmt: skip
    lines = [f"{name} = {target}" for name, target in points.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[haotuner.ops]", *lines, ""]))
    (tmp_path / "own_ops.py").write_text(ROW_SUM)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (index.installed, index.loaded):
        cached.cache_clear()
    yield tmp_path
    for cached in (index.installed, index.loaded):
        cached.cache_clear()
    sys.modules.pop("own_ops", None)


def test_a_kind_of_an_installed_package_has_names_and_families(package):
    op = Op.parse("own_row_sum:n=8")
    assert op.name == "own_row_sum_n8" and Op.parse(op.name) == op and op.dynamic == ("m",)
    assert kind_in("own_row_sum_n8") == "own_row_sum" and "own_row_sum" in kind_names()
    (family,) = families_for(op, "cpu")
    assert family.name == "cpu_generated_own_row_sum_fp32" and family_named(family.name) is family


@pytest.mark.parametrize(
    ("name", "words"),
    [("own_absent", "cannot be loaded: AttributeError"), ("own_number", "is a module; .* leads to an OpKind"),
     ("own_other", "must have the kind's name"), ("dense_own", "begin with 'dense'")],
)  # fmt: skip
def test_a_broken_one_is_told_with_its_package_and_nothing_else_is(package, name, words):
    with pytest.raises(UsageError, match=f"own-ops.* {words}|own-ops: .*{words}"):
        kind_named(name)
    assert Op.parse("dense:n=8,k=8").kind == "dense"
    assert families_for(Op.parse("softmax:"), "cpu")


def test_types_have_the_names_of_other_libraries_too():
    for alias, other in (("float32", "fp32"), ("float16", "fp16"), ("bfloat16", "bf16")):
        assert Op.parse(f"dense:n=8,k=8,dtype={alias}") == Op.parse(f"dense:n=8,k=8,dtype={other}")


def test_an_unknown_kind_is_told_with_the_nearest(package):
    with pytest.raises(UsageError, match="unknown op kind 'dens'; did you mean 'dense'"):
        Op.parse("dens:n=8,k=8")
    with pytest.raises(UsageError, match="did you mean 'own_row_sum'"):
        Op.parse("own_row_sums:")
    with pytest.raises(NothingLegal):
        families_for(Op.parse("dense:n=8"), "cpu")


def test_names_of_built_in_kinds_are_read_without_the_metadata_of_packages(monkeypatch):
    index.installed.cache_clear()
    monkeypatch.setattr(index, "entry_points", lambda **_: pytest.fail("the metadata of every package was read"))
    assert kind_in("dense_n8_k8") == "dense" and kind_in("") == ""
    assert Op.parse("softmax").kind == "softmax"
