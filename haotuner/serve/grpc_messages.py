"""Messages of the protocol's gRPC service, as classes of a descriptor pool of their own.

The table is our own writing of KServe's open inference protocol v2 and of the model repository extension. A pool of our own
lets a process also load the messages that a client library brings, which have the same names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE = "inference", "GRPCInferenceService"

# Of each message its fields in order, numbered from 1: name and type ("*": repeated, "map": by a text, ".": of the table).
FIELDS: dict[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready bool",
    "ModelReadyRequest": "name string, version string",
    "ModelReadyResponse": "ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name string, version string, extensions *string",
    "ModelMetadataRequest": "name string, version string",
    "ModelMetadataResponse": (
        "name string, versions *string, platform string, inputs *.ModelMetadataResponse.TensorMetadata, "
        "outputs *.ModelMetadataResponse.TensorMetadata"
    ),
    "ModelMetadataResponse.TensorMetadata": "name string, datatype string, shape *int64",
    "InferParameter": "bool_param bool, int64_param int64, string_param string, double_param double, uint64_param uint64",
    "InferTensorContents": (
        "bool_contents *bool, int_contents *int32, int64_contents *int64, uint_contents *uint32, "
        "uint64_contents *uint64, fp32_contents *float, fp64_contents *double, bytes_contents *bytes"
    ),
    "ModelInferRequest": (
        "model_name string, model_version string, id string, parameters map.InferParameter, "
        "inputs *.ModelInferRequest.InferInputTensor, outputs *.ModelInferRequest.InferRequestedOutputTensor, "
        "raw_input_contents *bytes"
    ),
    "ModelInferRequest.InferInputTensor": (
        "name string, datatype string, shape *int64, parameters map.InferParameter, contents .InferTensorContents"
    ),
    "ModelInferRequest.InferRequestedOutputTensor": "name string, parameters map.InferParameter",
    "ModelInferResponse": (
        "model_name string, model_version string, id string, parameters map.InferParameter, "
        "outputs *.ModelInferResponse.InferOutputTensor, raw_output_contents *bytes"
    ),
    "ModelInferResponse.InferOutputTensor": (
        "name string, datatype string, shape *int64, parameters map.InferParameter, contents .InferTensorContents"
    ),
    "RepositoryIndexRequest": "repository_name string, ready bool",
    "RepositoryIndexResponse": "models *.RepositoryIndexResponse.ModelIndex",
    "RepositoryIndexResponse.ModelIndex": "name string, version string, state string, reason string",
    "RepositoryModelLoadRequest": "repository_name string, model_name string",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name string, model_name string",
    "RepositoryModelUnloadResponse": "",
}
ONE_OF = {"InferParameter": "parameter_choice"}  # all fields of the message are one choice
CALLS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
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
        for number, field in enumerate(filter(None, fields.split(", ")), 1):
            _add(message, path, number, *field.split())
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
