"""Attributes of ONNX's operators, value by value: ``python -m tests.bench.onnx_attributes [--op NAME]``.

Variants are generated from ONNX's own node cases and the schemas of ``onnx.defs``: every attribute left out, at its
default and at each other value that is tried; inputs that are optional left out; every version of an operator. A variant
is judged by ``onnx.reference`` and ONNX Runtime, whichever answers. What neither answers is none.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper

from haotuner.frontends.onnx.table import RULES
from tests.bench.onnx_nodes import Answer, Imported, cases_of, differs, imported, interpreted, plain

LARGEST = 20_000  # elements of a case's inputs
CASES = 6  # of one operator, those whose nodes say most different things
NUMBERS = (0, 1, 2, 3)
COUNTS = (
    "group",
    "num_outputs",
    "num_groups",
    "k",
    "blocksize",
    "hidden_size",
    "batch_dims",
    "size",
    "p",
    "diagonal",
    "rank",
)
LEAST_ONE = ("kernel_shape", "strides", "dilations")  # of which nothing may be 0
REALS = (-1.0, 0.0, 0.5, 1.0, 2.0)
TYPES = (1, 3, 6, 7, 9, 10, 11)  # elements: float, int8, int32, int64, bool, float16, double
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Dropout")
BODIES = ("If", "Loop", "Scan", "SequenceMap")
SEQUENCES = ("SplitToSequence",)  # what all of its cases give out, which no array is
ENDS_RUNTIME = ("DFT", "LayerNormalization", "Split")  # variants of which end a process that has ONNX Runtime
RUNTIME_OPSET = 23  # the newest that ONNX Runtime takes of every operator


@dataclass(frozen=True)
class Variant:
    """A case in the words of ``onnx_nodes``: a model of one node, and its inputs; ``name`` says what was changed."""

    name: str
    op: str
    model: Any
    inputs: Sequence[Any]
    rtol: float = 1e-3
    atol: float = 1e-5
    expected: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data_sets(self) -> list[tuple[Any, Any]]:
        return [(self.inputs, next(iter(self.expected.values()), []))]


@cache
def _schemas_by_operator() -> Mapping[str, tuple[Any, ...]]:
    """Versions of every operator of ONNX's own domain. Each call of onnx copies all schemas of all domains."""
    versions: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions.setdefault(schema.name, []).append(schema)
    return {op: tuple(sorted(schemas, key=lambda schema: -schema.since_version)) for op, schemas in versions.items()}


def schemas(op: str) -> tuple[Any, ...]:
    """All versions of an operator, the newest first."""
    return _schemas_by_operator().get(op, ())


def supported() -> list[str]:
    """Operators with a rule and cases; without those of chance, of bodies, and that give out sequences."""
    return sorted(op for op in RULES if schemas(op) and op not in RANDOM + BODIES + SEQUENCES)


def bases(op: str) -> list[Any]:
    """Cases of an operator whose nodes differ most: by attributes that they give and inputs that they have."""
    found: dict[Any, Any] = {}
    for case in cases_of(op):
        arrays = [plain(one) for one in case.data_sets[0][0]]
        if not all(isinstance(one, np.ndarray) for one in arrays) or sum(one.size for one in arrays) > LARGEST:
            continue
        node = case.model.graph.node[0]
        said = tuple(sorted(one.name for one in node.attribute)), tuple(map(bool, node.input))
        shape = tuple((one.ndim, one.dtype.kind) for one in arrays)
        found.setdefault((said, shape), case)
    return list(found.values())[:CASES]


def variants(op: str) -> Iterator[Variant]:
    """Every variant of an operator's cases."""
    for case in bases(op):
        arrays = [plain(one) for one in case.data_sets[0][0]]
        node = case.model.graph.node[0]
        shapes = [one.shape for one in arrays]
        yield variant_of(case, node, f"{case.name}", arrays)
        for attribute in schemas(op)[0].attributes.values():
            for word, value in _values(attribute, node, shapes):
                changed = _with(node, attribute.name, value)
                yield variant_of(case, changed, f"{case.name} {attribute.name}={word}", arrays)
        for place, one in enumerate(schemas(op)[0].inputs):
            optional = one.option == onnx.defs.OpSchema.FormalParameterOption.Optional
            if optional and place < len(node.input) and node.input[place]:
                changed = onnx.NodeProto()
                changed.CopyFrom(node)
                changed.input[place] = ""
                yield variant_of(case, changed, f"{case.name} without {one.name}", arrays)
        yield from _older(op, case, node, arrays)


def _older(op: str, case: Any, node: Any, arrays: Sequence[Any]) -> Iterator[Variant]:
    """The same node by earlier versions of its operator, which had as attributes what now are inputs."""
    given = dict(zip([one.name for one in case.model.graph.input], arrays, strict=False))
    newest = schemas(op)[0]
    for later, schema in zip(schemas(op), schemas(op)[1:], strict=False):
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for place, one in enumerate(newest.inputs[: len(node.input)]):
            if one.name in schema.attributes and one.name not in newest.attributes and node.input[place] in given:
                value = given[node.input[place]]
                changed = _with(changed, one.name, value.tolist())
                changed.input[place] = ""
        while changed.input and not changed.input[-1]:
            del changed.input[-1]
        names = set(schema.attributes)
        for attribute in list(changed.attribute):
            if attribute.name not in names:
                changed.attribute.remove(attribute)
        opset = later.since_version - 1
        yield variant_of(case, changed, f"{case.name} opset {opset}", arrays, opset)
        for attribute in schema.attributes.values():
            said = {one.name for one in changed.attribute}
            if attribute.name in said and not attribute.required:
                yield variant_of(case, _with(changed, attribute.name, None),
                               f"{case.name} opset {opset} without {attribute.name}", arrays, opset)  # fmt: skip


def _with(node: Any, name: str, value: Any) -> Any:
    """The node with an attribute at a value; None leaves it out."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    for one in list(changed.attribute):
        if one.name == name:
            changed.attribute.remove(one)
    if value is not None:
        empty = AttributeProto.INTS if value == [] else None  # of which onnx cannot tell the type
        changed.attribute.append(helper.make_attribute(name, value, attr_type=empty))
    return changed


def _values(attribute: Any, node: Any, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """What is tried for an attribute, with a word for each."""
    now = {one.name: helper.get_attribute_value(one) for one in node.attribute}.get(attribute.name)
    default = helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
    if not attribute.required and now is not None:
        yield "none", None
    found: list[Any] = [] if default is None else [default]
    kind, rank = attribute.type, max((len(one) for one in shapes), default=0)
    if kind == onnx.defs.OpSchema.AttrType.INT:
        if attribute.name in ("to", "dtype", "output_dtype", "stash_type"):
            found += TYPES
        elif "axis" in attribute.name:
            found += range(-rank, rank)
        elif attribute.name != "training_mode":
            found += NUMBERS if attribute.name in COUNTS or default not in (0, 1, None) else (0, 1)
    elif kind == onnx.defs.OpSchema.AttrType.FLOAT:
        found += REALS
    elif kind == onnx.defs.OpSchema.AttrType.STRING:
        found += sorted(set(re.findall(r"[\"'`]([A-Za-z_]+)[\"'`]|\b([A-Z_]{4,})\b", attribute.description)))
        found = [max(one, key=len) if isinstance(one, tuple) else one for one in found]
        found = [one for one in found if len(one) > 2]
    elif kind == onnx.defs.OpSchema.AttrType.INTS:
        count = len(now) if isinstance(now, (list, tuple)) else max(1, rank - 2)
        if attribute.name == "pads" and now is None:
            count *= 2
        found += [[1] * count, [2] * count, [0] * count, list(range(1, count + 1)), [1 + (at % 2) for at in range(count)]]
        if attribute.name in ("axes", "perm"):
            found += [[-1], [0], list(range(rank)), list(range(rank))[::-1], [-1, -2], [1, 0]]
        if isinstance(now, (list, tuple)) and all(isinstance(one, int) for one in now):
            found += [list(now)[::-1]]
        if attribute.name in LEAST_ONE:
            found = [one for one in found if min(one) > 0]
    seen = [now]
    for value in found:
        if value not in seen:
            seen.append(value)
            yield re.sub(r"^b'(.*)'$", r"\1", str(value)).replace(" ", ""), value


def variant_of(case: Any, node: Any, name: str, arrays: Sequence[Any], opset: int | None = None) -> Variant:
    """A case with this node, of an opset that ONNX Runtime takes unless one is given."""
    graph = case.model.graph
    outputs = [helper.make_empty_tensor_value_info(one) for one in node.output if one]
    used = set(node.input)
    inputs = [(one, array) for one, array in zip(graph.input, arrays, strict=False) if one.name in used]
    made = helper.make_graph([node], "variant", [one for one, _ in inputs], outputs)
    version = case.model.opset_import[0].version if opset is None else opset
    if opset is None and version > RUNTIME_OPSET:
        version = max(RUNTIME_OPSET, schemas(node.op_type)[0].since_version)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    loose = max(case.rtol, 1e-3)
    return Variant(name.removeprefix("test_"), node.op_type, model, [array for _, array in inputs], loose)


def by_reference(one: Variant) -> Sequence[Any] | None:
    """What ``onnx.reference`` answers."""
    from onnx.reference import ReferenceEvaluator

    try:
        feeds = dict(zip([one.name for one in one.model.graph.input], one.inputs, strict=True))
        found = [np.asarray(value) for value in ReferenceEvaluator(one.model).run(None, feeds)]
    except Exception:
        return None
    return found if all(value.dtype != object for value in found) else None


def by_runtime(one: Variant) -> Sequence[Any] | None:
    """What ONNX Runtime answers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        feeds = dict(zip([one.name for one in one.model.graph.input], one.inputs, strict=True))
        session = onnxruntime.InferenceSession(one.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(None, feeds)
    except Exception:
        return None
    return [np.asarray(value) for value in found] if all(isinstance(value, np.ndarray) for value in found) else None


def verdict(one: Variant) -> tuple[str, str]:
    """A word for what came of a variant, and why: same, wrong, refused, reference, runtime (whom it agrees with), none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        judges = {"reference": by_reference(one)} | ({} if one.op in ENDS_RUNTIME else {"runtime": by_runtime(one)})
        answers = {name: values for name, values in judges.items() if values}
        if not answers:
            return "none", ""
        made = imported(one, one.op)
        found = made if isinstance(made, Answer) else interpreted(made)
        if isinstance(found, (Answer, str)):
            return "refused", f"{'+'.join(answers)}: {found.why if isinstance(found, Answer) else found}"
        assert isinstance(made, Imported)
        why = {name: _differs(made, found, want, one) for name, want in answers.items()}
        agree = [name for name, words in why.items() if not words]
        told = "; ".join(f"{name}: {words}" for name, words in why.items() if words)
        return ("same" if not told else agree[0] if agree else "wrong"), told


def _differs(made: Imported, found: Mapping[str, Any], wanted: Sequence[Any], one: Variant) -> str:
    for name, want in zip(made.graph.outputs, wanted, strict=False):
        why = differs(found[name], want, one)
        if why:
            return why
    return ""


def main() -> int:
    """Print every variant that is not the same everywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append")
    asked = parser.parse_args()
    for op in asked.op or supported():
        counts: dict[str, int] = {}
        for one in variants(op):
            word, why = verdict(one)
            counts[word] = counts.get(word, 0) + 1
            if word not in ("same", "none"):
                print(f"{word:9} {op:20} {one.name}: {why[:170]}", flush=True)
        print(f"# {op}: {counts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
