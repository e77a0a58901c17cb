"""Identity of a model's file: what a server compares before it lets a pack answer for a model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.onnx.file import EXTERNAL, LARGEST_EXTERNAL, LARGEST_FILE, open_model
from haotuner.frontends.torch_export.exported_program import SUFFIX
from haotuner.host.files import open_beneath, read_regular


def source_sha256(path: Path) -> str:
    """SHA-256 of a model's file, in hex.

    Where tensors lie in further files, it is the SHA-256 of hex digits: those of the file's hash, then of each further
    file's, by their names in ascending order of bytes. integrations/onnxruntime/native/identity.c does the same.

    UsageError where a file cannot be read.
    """
    try:
        own = hashlib.sha256(read_regular(path, LARGEST_FILE)).hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name a model's file") from error
    names = set() if path.suffix == SUFFIX else {os.fsencode(name) for name in _external_files(open_model(path))}
    if not names:
        return own
    digests = [own, *(_file_sha256(path.parent, os.fsdecode(name)) for name in sorted(names))]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _file_sha256(folder: Path, name: str) -> str:
    try:
        with open_beneath(folder, name, LARGEST_EXTERNAL) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise UsageError(f"external data {name!r} of {folder} cannot be read: {words}; put it beside the model") from error


def _external_files(model: Any) -> Iterator[str | bytes]:
    """Files of a ModelProto's tensors, as they are named there: bytes where that is no text. The last location counts."""
    nodes = [node for function in model.functions for node in function.node]
    for tensor in (*_tensors_of_graph(model.graph), *_tensors_of_nodes(nodes)):
        if tensor.data_location == EXTERNAL:
            yield from [item.value for item in tensor.external_data if item.key == "location"][-1:]


def _tensors_of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from (part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices))
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Any) -> Iterator[Any]:
    """Tensors of nodes and of the graphs inside of them."""
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors_of_graph(inner)
