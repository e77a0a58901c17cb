"""Messages of the protocol's gRPC service, as classes of a descriptor pool of their own.

The table is our own writing of KServe's open inference protocol v2 and of the model repository extension. A pool of our own
lets a process also load the messages that a client library brings, which have the same names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE = "inference", "GRPCInferenceService"

# Of each message its fields: number, name, type ("*": repeated, "map": by a text, ".": a message of the table).
FIELDS: dict[str, tuple[tuple[int, str, str], ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ((1, "live", "bool"),),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ((1, "ready", "bool"),),
    "ModelReadyRequest": ((1, "name", "string"), (2, "version", "string")),
    "ModelReadyResponse": ((1, "ready", "bool"),),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ((1, "name", "string"), (2, "version", "string"), (3, "extensions", "*string")),
    "ModelMetadataRequest": ((1, "name", "string"), (2, "version", "string")),
    "ModelMetadataResponse": (
        (1, "name", "string"),
        (2, "versions", "*string"),
        (3, "platform", "string"),
        (4, "inputs", "*.ModelMetadataResponse.TensorMetadata"),
        (5, "outputs", "*.ModelMetadataResponse.TensorMetadata"),
    ),
    "ModelMetadataResponse.TensorMetadata": ((1, "name", "string"), (2, "datatype", "string"), (3, "shape", "*int64")),
    "InferParameter": (
        (1, "bool_param", "bool"),
        (2, "int64_param", "int64"),
        (3, "string_param", "string"),
        (4, "double_param", "double"),
        (5, "uint64_param", "uint64"),
    ),
    "InferTensorContents": (
        (1, "bool_contents", "*bool"),
        (2, "int_contents", "*int32"),
        (3, "int64_contents", "*int64"),
        (4, "uint_contents", "*uint32"),
        (5, "uint64_contents", "*uint64"),
        (6, "fp32_contents", "*float"),
        (7, "fp64_contents", "*double"),
        (8, "bytes_contents", "*bytes"),
    ),
    "ModelInferRequest": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map.InferParameter"),
        (5, "inputs", "*.ModelInferRequest.InferInputTensor"),
        (6, "outputs", "*.ModelInferRequest.InferRequestedOutputTensor"),
        (7, "raw_input_contents", "*bytes"),
    ),
    "ModelInferRequest.InferInputTensor": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "*int64"),
        (4, "parameters", "map.InferParameter"),
        (5, "contents", ".InferTensorContents"),
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ((1, "name", "string"), (2, "parameters", "map.InferParameter")),
    "ModelInferResponse": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        (4, "parameters", "map.InferParameter"),
        (5, "outputs", "*.ModelInferResponse.InferOutputTensor"),
        (6, "raw_output_contents", "*bytes"),
    ),
    "ModelInferResponse.InferOutputTensor": (
        (1, "name", "string"),
        (2, "datatype", "string"),
        (3, "shape", "*int64"),
        (4, "parameters", "map.InferParameter"),
        (5, "contents", ".InferTensorContents"),
    ),
    "RepositoryIndexRequest": ((1, "repository_name", "string"), (2, "ready", "bool")),
    "RepositoryIndexResponse": ((1, "models", "*.RepositoryIndexResponse.ModelIndex"),),
    "RepositoryIndexResponse.ModelIndex": (
        (1, "name", "string"),
        (2, "version", "string"),
        (3, "state", "string"),
        (4, "reason", "string"),
    ),
    "RepositoryModelLoadRequest": ((1, "repository_name", "string"), (2, "model_name", "string")),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": ((1, "repository_name", "string"), (2, "model_name", "string")),
    "RepositoryModelUnloadResponse": (),
}
ONE_OF = {"InferParameter": "parameter_choice"}  # all fields of the message are one choice
CALLS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
_KIND = descriptor_pb2.FieldDescriptorProto
_TYPES = {name: getattr(_KIND, f"TYPE_{name.upper()}") for name in
          ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")}  # fmt: skip


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="haotuner/open_inference.proto", package=PACKAGE, syntax="proto3")
    messages: dict[str, Any] = {}
    for path, fields in FIELDS.items():
        outer, _, name = path.rpartition(".")
        message = messages[path] = messages[outer].nested_type.add(name=name) if outer else file.message_type.add(name=name)
        if path in ONE_OF:
            message.oneof_decl.add(name=ONE_OF[path])
        for number, field, kind in fields:
            _add(message, path, number, field, kind)
    return file


def _add(message: Any, path: str, number: int, name: str, kind: str) -> None:
    repeated = kind.startswith(("*", "map"))
    added = message.field.add(name=name, number=number, label=_KIND.LABEL_REPEATED if repeated else _KIND.LABEL_OPTIONAL)
    if kind.startswith("map"):
        entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_TYPES["string"], label=_KIND.LABEL_OPTIONAL)
        value = entry.field.add(name="value", number=2, type=_KIND.TYPE_MESSAGE, label=_KIND.LABEL_OPTIONAL)
        value.type_name = f".{PACKAGE}{kind.removeprefix('map')}"
        added.type, added.type_name = _KIND.TYPE_MESSAGE, f".{PACKAGE}.{path}.{entry.name}"
    elif "." in kind:
        added.type, added.type_name = _KIND.TYPE_MESSAGE, f".{PACKAGE}{kind.lstrip('*')}"
    else:
        added.type = _TYPES[kind.lstrip("*")]
    if path in ONE_OF:
        added.oneof_index = 0


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in FIELDS
        if "." not in name
    }


MESSAGES = _classes()
