"""Operators that are defined by others: the model's own functions, and those that ONNX's definitions take apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from haotuner.frontends.onnx.file import onnx_library
from haotuner.frontends.onnx.table import MAIN
from haotuner.frontends.onnx.types import DTYPES
from haotuner.graph.extents import text
from haotuner.graph.types import TensorType

Key: TypeAlias = tuple[str, str, str]  # a function's domain, name and overload
_NUMBERS = {name: number for number, name in DTYPES.items()}


def key_of(item: Any) -> Key:
    """Key of a FunctionProto, or of the function that a node calls. Files of before ONNX 1.16 have no overloads."""
    name = item.op_type if hasattr(item, "op_type") else item.name
    return item.domain, name, getattr(item, "overload", "")


def body_of(node: Any, opset: int, types: list[TensorType | None], own: Mapping[Key, Any]) -> Any:
    """The FunctionProto of a node, or None. ``types`` of its inputs, None where one is left out."""
    result = own.get(key_of(node))
    if result is not None or node.domain not in MAIN:
        return result
    onnx = onnx_library()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if not versions:
        return None
    body = onnx.FunctionProto()
    values = [_proto(onnx, dtype).SerializeToString() for dtype in types]
    body.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), values)
    )
    return body if body.node else None


def can_be_taken_apart(node: Any, opset: int, own: Mapping[Key, Any]) -> bool:
    """True if there is a body at all."""
    if key_of(node) in own:
        return True
    onnx = onnx_library()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return False
    return node.domain in MAIN and bool(schema.has_function or schema.has_context_dependent_function)


def defaults_of(node: Any, opset: int) -> dict[str, Any]:
    """Attributes that a node does not give, where the operator's definition has a default."""
    onnx = onnx_library()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.name}


def misfit(node: Any, opset: int) -> str:
    """Misfit of a node with the definition of one of ONNX's own operators, in words; empty where it fits."""
    onnx = onnx_library()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return ""
    if schema.deprecated:
        return ""
    odd = [item.name for item in node.attribute if item.name not in schema.attributes]
    if odd:
        return f"attribute {', '.join(odd)}: opset {opset} has none of that name; export the model again"
    for what, count, least, most in (("inputs", len(node.input), schema.min_input, schema.max_input),
                                     ("outputs", len(node.output), schema.min_output, schema.max_output)):  # fmt: skip
        if not least <= count <= most:
            bound = f"at least {least}" if count < least else f"at most {most}"
            return f"{count} {what}: opset {opset} has {bound}; export the model again"
    return ""


def _proto(onnx: Any, kind: TensorType | None) -> Any:
    if kind is None:
        return onnx.TypeProto()
    shape = [extent if isinstance(extent, int) else text(extent) for extent in kind.shape]
    return onnx.helper.make_tensor_type_proto(_NUMBERS[kind.dtype], shape)


def filled_in(node: Any, attributes: Mapping[str, Any]) -> Any:
    """A body's node with the caller's attributes where it, or a graph inside it, refers to them."""
    if not _refers(node):
        return node
    onnx = onnx_library()
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for item in node.attribute:
        if not item.ref_attr_name:
            inside = onnx.AttributeProto()
            inside.CopyFrom(item)
            for graph in _graphs_in(inside):
                for inner in graph.node:
                    inner.CopyFrom(filled_in(inner, attributes))
            result.attribute.append(inside)
        elif item.ref_attr_name in attributes:
            inputs = onnx.AttributeProto()
            inputs.CopyFrom(attributes[item.ref_attr_name])
            inputs.name = item.name
            result.attribute.append(inputs)
    return result


def _graphs_in(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _refers(node: Any) -> bool:
    return any(
        item.ref_attr_name or any(_refers(inner) for graph in _graphs_in(item) for inner in graph.node)
        for item in node.attribute
    )
