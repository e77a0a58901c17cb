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
    cases: dict[Any, Any] = {}
    for case in cases_of(op):
        arrays = [plain(item) for item in case.data_sets[0][0]]
        if not all(isinstance(item, np.ndarray) for item in arrays) or sum(item.size for item in arrays) > LARGEST:
            continue
        node = case.model.graph.node[0]
        signature = tuple(sorted(item.name for item in node.attribute)), tuple(map(bool, node.input))
        shape = tuple((item.ndim, item.dtype.kind) for item in arrays)
        cases.setdefault((signature, shape), case)
    return list(cases.values())[:CASES]


def variants(op: str) -> Iterator[Variant]:
    """Every variant of an operator's cases."""
    for case in bases(op):
        arrays = [plain(item) for item in case.data_sets[0][0]]
        node = case.model.graph.node[0]
        shapes = [item.shape for item in arrays]
        yield variant_of(case, node, f"{case.name}", arrays)
        for attribute in schemas(op)[0].attributes.values():
            for word, value in _values(attribute, node, shapes):
                changed = _with(node, attribute.name, value)
                yield variant_of(case, changed, f"{case.name} {attribute.name}={word}", arrays)
        for index, item in enumerate(schemas(op)[0].inputs):
            optional = item.option == onnx.defs.OpSchema.FormalParameterOption.Optional
            if optional and index < len(node.input) and node.input[index]:
                changed = onnx.NodeProto()
                changed.CopyFrom(node)
                changed.input[index] = ""
                yield variant_of(case, changed, f"{case.name} without {item.name}", arrays)
        yield from _older(op, case, node, arrays)


def _older(op: str, case: Any, node: Any, arrays: Sequence[Any]) -> Iterator[Variant]:
    """The same node by earlier versions of its operator, which had as attributes what now are inputs."""
    feeds = dict(zip([item.name for item in case.model.graph.input], arrays, strict=False))
    newest = schemas(op)[0]
    for later, schema in zip(schemas(op), schemas(op)[1:], strict=False):
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for index, item in enumerate(newest.inputs[: len(node.input)]):
            if item.name in schema.attributes and item.name not in newest.attributes and node.input[index] in feeds:
                value = feeds[node.input[index]]
                changed = _with(changed, item.name, value.tolist())
                changed.input[index] = ""
        while changed.input and not changed.input[-1]:
            del changed.input[-1]
        names = set(schema.attributes)
        for attribute in list(changed.attribute):
            if attribute.name not in names:
                changed.attribute.remove(attribute)
        opset = later.since_version - 1
        yield variant_of(case, changed, f"{case.name} opset {opset}", arrays, opset)
        for attribute in schema.attributes.values():
            present = {item.name for item in changed.attribute}
            if attribute.name in present and not attribute.required:
                yield variant_of(case, _with(changed, attribute.name, None),
                               f"{case.name} opset {opset} without {attribute.name}", arrays, opset)  # fmt: skip


def _with(node: Any, name: str, value: Any) -> Any:
    """The node with an attribute at a value; None leaves it out."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    for item in list(changed.attribute):
        if item.name == name:
            changed.attribute.remove(item)
    if value is not None:
        empty = AttributeProto.INTS if value == [] else None  # of which onnx cannot tell the type
        changed.attribute.append(helper.make_attribute(name, value, attr_type=empty))
    return changed


def _values(attribute: Any, node: Any, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """What is tried for an attribute, with a word for each."""
    now = {item.name: helper.get_attribute_value(item) for item in node.attribute}.get(attribute.name)
    default = helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
    if not attribute.required and now is not None:
        yield "none", None
    values: list[Any] = [] if default is None else [default]
    kind, rank = attribute.type, max((len(item) for item in shapes), default=0)
    if kind == onnx.defs.OpSchema.AttrType.INT:
        if attribute.name in ("to", "dtype", "output_dtype", "stash_type"):
            values += TYPES
        elif "axis" in attribute.name:
            values += range(-rank, rank)
        elif attribute.name != "training_mode":
            values += NUMBERS if attribute.name in COUNTS or default not in (0, 1, None) else (0, 1)
    elif kind == onnx.defs.OpSchema.AttrType.FLOAT:
        values += REALS
    elif kind == onnx.defs.OpSchema.AttrType.STRING:
        values += sorted(set(re.findall(r"[\"'`]([A-Za-z_]+)[\"'`]|\b([A-Z_]{4,})\b", attribute.description)))
        values = [max(item, key=len) if isinstance(item, tuple) else item for item in values]
        values = [item for item in values if len(item) > 2]
    elif kind == onnx.defs.OpSchema.AttrType.INTS:
        count = len(now) if isinstance(now, (list, tuple)) else max(1, rank - 2)
        if attribute.name == "pads" and now is None:
            count *= 2
        values += [[1] * count, [2] * count, [0] * count, list(range(1, count + 1)), [1 + (at % 2) for at in range(count)]]
        if attribute.name in ("axes", "perm"):
            values += [[-1], [0], list(range(rank)), list(range(rank))[::-1], [-1, -2], [1, 0]]
        if isinstance(now, (list, tuple)) and all(isinstance(item, int) for item in now):
            values += [list(now)[::-1]]
        if attribute.name in LEAST_ONE:
            values = [item for item in values if min(item) > 0]
    seen = [now]
    for value in values:
        if value not in seen:
            seen.append(value)
            yield re.sub(r"^b'(.*)'$", r"\1", str(value)).replace(" ", ""), value


def variant_of(case: Any, node: Any, name: str, arrays: Sequence[Any], opset: int | None = None) -> Variant:
    """A case with this node, of an opset that ONNX Runtime takes unless one is given."""
    graph = case.model.graph
    outputs = [helper.make_empty_tensor_value_info(end) for end in node.output if end]
    used = set(node.input)
    inputs = [(end, array) for end, array in zip(graph.input, arrays, strict=False) if end.name in used]
    node_graph = helper.make_graph([node], "variant", [end for end, _ in inputs], outputs)
    version = case.model.opset_import[0].version if opset is None else opset
    if opset is None and version > RUNTIME_OPSET:
        version = max(RUNTIME_OPSET, schemas(node.op_type)[0].since_version)
    model = helper.make_model(node_graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    loose = max(case.rtol, 1e-3)
    return Variant(name.removeprefix("test_"), node.op_type, model, [array for _, array in inputs], loose)


def by_reference(variant: Variant) -> Sequence[Any] | None:
    """What ``onnx.reference`` answers."""
    from onnx.reference import ReferenceEvaluator

    try:
        feeds = dict(zip([variant.name for variant in variant.model.graph.input], variant.inputs, strict=True))
        results = [np.asarray(value) for value in ReferenceEvaluator(variant.model).run(None, feeds)]
    except Exception:
        return None
    return results if all(value.dtype != object for value in results) else None


def by_runtime(variant: Variant) -> Sequence[Any] | None:
    """What ONNX Runtime answers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        feeds = dict(zip([variant.name for variant in variant.model.graph.input], variant.inputs, strict=True))
        session = onnxruntime.InferenceSession(
            variant.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, feeds)
    except Exception:
        return None
    return [np.asarray(value) for value in results] if all(isinstance(value, np.ndarray) for value in results) else None


def verdict(variant: Variant) -> tuple[str, str]:
    """A word for what came of a variant, and why: same, wrong, refused, reference, runtime (whom it agrees with), none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        judges = {"reference": by_reference(variant)} | (
            {} if variant.op in ENDS_RUNTIME else {"runtime": by_runtime(variant)}
        )
        answers = {name: values for name, values in judges.items() if values}
        if not answers:
            return "none", ""
        outcome = imported(variant, variant.op)
        answer = outcome if isinstance(outcome, Answer) else interpreted(outcome)
        if isinstance(answer, (Answer, str)):
            return "refused", f"{'+'.join(answers)}: {answer.why if isinstance(answer, Answer) else answer}"
        assert isinstance(outcome, Imported)
        why = {name: _differs(outcome, answer, expected, variant) for name, expected in answers.items()}
        agree = [name for name, words in why.items() if not words]
        text = "; ".join(f"{name}: {words}" for name, words in why.items() if words)
        return ("same" if not text else agree[0] if agree else "wrong"), text


def _differs(imported_case: Imported, answer: Mapping[str, Any], expected: Sequence[Any], variant: Variant) -> str:
    for name, expected_output in zip(imported_case.graph.outputs, expected, strict=False):
        why = differs(answer[name], expected_output, variant)
        if why:
            return why
    return ""


def main() -> int:
    """Print every variant that is not the same everywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append")
    args = parser.parse_args()
    for op in args.op or supported():
        counts: dict[str, int] = {}
        for variant in variants(op):
            word, why = verdict(variant)
            counts[word] = counts.get(word, 0) + 1
            if word not in ("same", "none"):
                print(f"{word:9} {op:20} {variant.name}: {why[:170]}", flush=True)
        print(f"# {op}: {counts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
