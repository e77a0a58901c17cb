"""gRPC service of the protocol: each call's request and answer, with refusals as gRPC's codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from haotuner import __version__
from haotuner.serve.datatypes import NUMPY, array_of, array_of_numbers, checked_shape, datatype_of
from haotuner.serve.grpc_messages import CALLS, MESSAGES, PACKAGE, SERVICE
from haotuner.serve.http_app import EXTENSIONS, SERVER, State
from haotuner.serve.inference import InferenceRequest, checked_outputs, metadata, sizes_of
from haotuner.serve.observing import GRPC, Observing
from haotuner.serve.refusals import InvalidRequest, Refusal, refusal_of
from haotuner.serve.repository import Repository, pack_id

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


class InferenceService:
    """Handlers of the calls, one method a call, named as it is."""

    def __init__(self, repository: Repository, observing: Observing, state: State) -> None:
        self._repository, self._observing, self._state = repository, observing, state

    def ServerLive(self, _: Any, __: Any) -> Any:  # noqa: N802
        """Always true: the process answers."""
        return MESSAGES["ServerLiveResponse"](live=True)

    def ServerReady(self, _: Any, __: Any) -> Any:  # noqa: N802
        """True while requests are taken."""
        return MESSAGES["ServerReadyResponse"](ready=self._state.ready)

    def ModelReady(self, request: Any, _: Any) -> Any:  # noqa: N802
        """True while requests are taken. UnknownModel."""
        self._repository.batcher(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=self._state.ready)

    def ServerMetadata(self, _: Any, __: Any) -> Any:  # noqa: N802
        """Name, version, extensions."""
        return MESSAGES["ServerMetadataResponse"](name=SERVER, version=__version__, extensions=EXTENSIONS)

    def ModelMetadata(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Inputs and outputs of a model. UnknownModel."""
        batcher = self._repository.batcher(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**metadata(batcher.model, self._repository.version(request.name)))

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The answer, its tensors as bytes. Refusals as of the request and of the model."""
        name = request.model_name
        batcher = self._repository.batcher(name, request.model_version)
        inputs = dict(_inputs(request, batcher.model))
        names = checked_outputs(batcher.model, [output.name for output in request.outputs])
        inference = InferenceRequest(name, request.id, inputs, names, sizes_of(batcher.model, inputs))
        with self._observing.span(name, inference, dict(context.invocation_metadata())):
            outputs = batcher.answer_now(inference) or batcher.submit(inference).result()
        answer = MESSAGES["ModelInferResponse"](model_name=name, model_version=self._repository.version(name), id=request.id)
        for key in names or outputs:
            array = np.ascontiguousarray(outputs[key])
            answer.outputs.add(name=key, datatype=datatype_of(array.dtype), shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        self._observing.answered(name, GRPC)
        return answer

    def RepositoryIndex(self, _: Any, __: Any) -> Any:  # noqa: N802
        """The models, and the ids of their packs."""
        answer = MESSAGES["RepositoryIndexResponse"]()
        for name in list(self._repository.batchers):
            reason = pack_id(self._repository.pack_of(name))
            answer.models.add(name=name, version=self._repository.version(name), state="READY", reason=reason)
        return answer

    def RepositoryModelLoad(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Hand over to the pack that lies there now."""
        self._observing.hand_over(self._repository, self._repository.path_of(request.model_name))
        return MESSAGES["RepositoryModelLoadResponse"]()

    def RepositoryModelUnload(self, request: Any, _: Any) -> Any:  # noqa: N802
        """InvalidRequest: models stay as long as the server runs."""
        self._repository.batcher(request.model_name)
        raise InvalidRequest("models are not unloaded one by one; stop the server, or serve other packs")


def _inputs(request: Any, model: Any) -> Iterator[tuple[str, Any]]:
    types = {end.name: end.dtype for end in model.inputs}
    raw, seen = list(request.raw_input_contents), set[str]()
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequest(f"{len(request.inputs)} inputs come with {len(raw)} raw contents; send one for each, or none")
    for index, item in enumerate(request.inputs):
        where = f"input {item.name}"
        if item.name not in types:
            raise InvalidRequest(f"{model.name} has no input {item.name!r:.80}; it has {', '.join(types)}")
        if item.name in seen:
            raise InvalidRequest(f"{where} is there twice")
        seen.add(item.name)
        dtype = types[item.name]
        if NUMPY.get(item.datatype) != dtype.name:
            raise InvalidRequest(f"{model.name}: {where} must be of {datatype_of(dtype)}, got {item.datatype!r:.40}")
        shape = checked_shape(list(item.shape), where)
        if raw and item.HasField("contents"):
            raise InvalidRequest(f"{where} has contents and raw contents; send one of both")
        if raw:
            yield item.name, array_of(raw[index], dtype, shape, where)
        elif item.datatype in CONTENTS:
            yield item.name, array_of_numbers(list(getattr(item.contents, CONTENTS[item.datatype])), dtype, shape, where)
        else:
            raise InvalidRequest(f"{where}: {item.datatype} comes as raw contents alone")


def grpc_server(repository: Repository, observing: Observing, state: State, *, body_bytes: int, waiting: int) -> Any:
    """The server, without an address. ``body_bytes``: of a message at most; ``waiting``: calls at once at most."""
    service = InferenceService(repository, observing, state)
    handlers = {
        call: grpc.unary_unary_rpc_method_handler(
            _refusing(getattr(service, call), observing),
            request_deserializer=MESSAGES[f"{call}Request"].FromString,
            response_serializer=MESSAGES[f"{call}Response"].SerializeToString,
        )
        for call in CALLS
    }
    server = grpc.server(
        ThreadPoolExecutor(waiting, thread_name_prefix="haotuner-grpc"),  # each has one, or health waits behind answers
        options=[
            ("grpc.max_receive_message_length", body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port in use is an error
        ],
        maximum_concurrent_rpcs=waiting,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers),))
    return server


def _refusing(handler: Callable[[Any, Any], Any], observing: Observing) -> Callable[[Any, Any], Any]:
    """The handler's answer, or gRPC's code and words of what was wrong."""

    def answer(request: Any, context: Any) -> Any:
        try:
            return handler(request, context)
        except Exception as error:
            refusal: Refusal = refusal_of(error)
            observing.refused(getattr(request, "model_name", "") or getattr(request, "name", ""), GRPC, refusal)
            context.abort(getattr(grpc.StatusCode, refusal.grpc), str(refusal))

    return answer
