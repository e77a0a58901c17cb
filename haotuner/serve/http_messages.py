"""Bodies of the protocol's HTTP calls: JSON, and tensors as bytes behind it (the binary tensor extension)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from haotuner.serve.datatypes import NUMPY, array_of, array_of_numbers, checked_shape, datatype_of
from haotuner.serve.inference import InferenceRequest, checked_outputs, sizes_of
from haotuner.serve.refusals import InvalidRequest

HEADER = "Inference-Header-Content-Length"
MOST_TENSORS = 1024  # of one request
MOST_DIGITS = 19  # of a length


def parsed(body: bytes, json_length: str | None, model: Any) -> tuple[InferenceRequest, dict[str, bool] | None]:
    """A request, and of each output that it names whether its data are to be bytes; None where it names none.

    ``json_length``: the header of the extension; None where the whole body is JSON. InvalidRequest says what is wrong.
    """
    head, rest = _split(body, json_length)
    try:
        document = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object with a list of inputs")
    inputs = dict(_inputs(document.get("inputs"), rest, model))
    parameters = _object(document.get("parameters", {}), "parameters")
    requested = document.get("outputs") or []
    if not isinstance(requested, list) or len(requested) > MOST_TENSORS:
        raise InvalidRequest("outputs must be a list of objects with names")
    default = bool(parameters.get("binary_data_output", False))
    binary: dict[str, bool] = {}
    for output in requested:
        name = _object(output, "an output").get("name")
        if not isinstance(name, str):
            raise InvalidRequest(f"an output must have a name, got {name!r:.80}")
        options = _object(output.get("parameters", {}), f"parameters of output {name}")
        if options.get("classification"):
            raise InvalidRequest(f"output {name}: classification is an extension that this server does not have")
        binary[name] = bool(options.get("binary_data", default))
    names = checked_outputs(model, list(binary))
    request = InferenceRequest(model.name, _id(document.get("id", "")), inputs, names, sizes_of(model, inputs))
    every = {end.name: default for end in model.outputs}
    return request, binary or every


def answered(
    request: InferenceRequest, outputs: Mapping[str, Any], binary: Mapping[str, bool] | None, version: str
) -> tuple[list[bytes], int | None]:
    """Parts of the body of an answer, and the length of its JSON where bytes follow it, else None."""
    documents, parts = [], list[bytes]()
    for name in request.outputs or outputs:
        array = outputs[name]
        document: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
        if binary is not None and binary.get(name):
            raw = np.ascontiguousarray(array).tobytes()
            document["parameters"] = {"binary_data_size": len(raw)}
            parts.append(raw)
        else:
            document["data"] = _numbers(name, array)
        documents.append(document)
    answer: dict[str, Any] = {"model_name": request.model, "model_version": version, "outputs": documents}
    if request.id:
        answer["id"] = request.id
    head = json.dumps(answer, separators=(",", ":"), allow_nan=True).encode()
    return [head, *parts], len(head) if parts else None


def _numbers(name: str, array: Any) -> list[Any]:
    if array.dtype.name in ("bfloat16", "float16"):
        raise InvalidRequest(f"output {name} is of {array.dtype}, which JSON has not; ask for binary data")
    numbers: list[Any] = array.reshape(-1).tolist()
    return numbers


def _split(body: bytes, json_length: str | None) -> tuple[bytes, memoryview]:
    if json_length is None:
        return body, memoryview(b"")
    if not json_length.isdecimal() or len(json_length) > MOST_DIGITS or int(json_length) > len(body):
        raise InvalidRequest(f"{HEADER}: {json_length!r:.40} is no length within the body of {len(body)} bytes")
    length = int(json_length)
    return body[:length], memoryview(body)[length:]


def _inputs(value: Any, rest: memoryview, model: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list) or len(value) > MOST_TENSORS:
        raise InvalidRequest("inputs must be a list of objects with name, datatype and shape")
    types = {end.name: end.dtype for end in model.inputs}
    seen, position = set[str](), 0
    for each in value:
        item = _object(each, "an input")
        name = item.get("name")
        if not isinstance(name, str):
            raise InvalidRequest(f"an input must have a name, got {name!r:.80}")
        if name in seen:
            raise InvalidRequest(f"input {name} is there twice")
        seen.add(name)
        if name not in types:
            raise InvalidRequest(f"{model.name} has no input {name!r:.80}; it has {', '.join(types)}")
        datatype, where = item.get("datatype"), f"input {name}"
        if NUMPY.get(str(datatype)) != types[name].name:
            raise InvalidRequest(f"{model.name}: {where} must be of {datatype_of(types[name])}, got {datatype!r:.40}")
        shape = checked_shape(item.get("shape"), where)
        size = _object(item.get("parameters", {}), f"parameters of {where}").get("binary_data_size")
        if size is None:
            yield name, array_of_numbers(item.get("data"), types[name], shape, where)
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - position:
            raise InvalidRequest(
                f"{where}: binary_data_size {size!r:.40} is more than the {len(rest) - position} bytes left"
            )
        yield name, array_of(rest[position : position + size], types[name], shape, where)
        position += size
    if position != len(rest):
        raise InvalidRequest(f"{len(rest) - position} bytes follow the inputs' data; send as many as binary_data_size says")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be a JSON object, got {value!r:.80}")
    return value


def _id(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"id must be a text, got {value!r:.80}")
    return value
