"""HTTP application: the protocol's calls, the repository's, and metrics, as routes of Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from haotuner import __version__
from haotuner.serve.http_messages import HEADER, answered, parsed
from haotuner.serve.inference import metadata
from haotuner.serve.observing import HTTP, Observing
from haotuner.serve.refusals import InvalidRequest, Refusal, TooLarge, TooSlow, refusal_of
from haotuner.serve.repository import Repository, pack_id

SERVER = "haotuner"
EXTENSIONS = ["binary_tensor_data", "model_repository", "expected_times"]
Handler = Callable[[Request], Awaitable[Response]]


class State:
    """State of a server. ``ready``: it takes requests; false before it is up, and from the moment it is to stop."""

    ready = False


def http_app(repository: Repository, observing: Observing, state: State, *, body_bytes: int, body_s: float) -> Starlette:
    """The application. ``body_bytes``: of a request at most; ``body_s``: seconds that a client has to send it."""
    app = Starlette(exception_handlers={404: _no_such_call, 405: _no_such_call})

    def route(path: str, handler: Handler, methods: tuple[str, ...] = ("GET",)) -> None:
        app.router.add_route(path, partial(_refusing, handler, observing), methods=list(methods))

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": state.ready}, 200 if state.ready else 503)

    async def server_metadata(_: Request) -> Response:
        return JSONResponse({"name": SERVER, "version": __version__, "extensions": EXTENSIONS})

    async def model_metadata(request: Request) -> Response:
        name = request.path_params["name"]
        batcher = repository.batcher(name, request.path_params.get("version", ""))
        return JSONResponse(metadata(batcher.model, repository.version(name)))

    async def model_ready(request: Request) -> Response:
        name = request.path_params["name"]
        repository.batcher(name, request.path_params.get("version", ""))
        return JSONResponse({"name": name, "ready": state.ready}, 200 if state.ready else 503)

    async def model_expected(request: Request) -> Response:
        """Extension: what a request of these sizes is expected to take, for schedulers in front of the server."""
        model = repository.batcher(request.path_params["name"]).model
        try:
            dims = {name: int(size) for name, size in request.query_params.items()}
        except ValueError as error:
            raise InvalidRequest(f"sizes must be whole numbers: {error}") from error
        low, expected, high = model.expected_us(**dims)
        return JSONResponse({"low_us": low, "expected_us": expected, "high_us": high})

    async def infer(request: Request) -> Response:
        name = request.path_params["name"]
        batcher = repository.batcher(name, request.path_params.get("version", ""))
        body = await _body(request, body_bytes, body_s)
        inference, binary = parsed(body, request.headers.get(HEADER), batcher.model)
        with observing.span(name, inference, request.headers):
            outputs = batcher.answer_now(inference)
            if outputs is None:
                outputs = await asyncio.wrap_future(batcher.submit(inference))
        parts, json_length = answered(inference, outputs, binary, repository.version(name))
        observing.answered(name, HTTP)
        headers = {} if json_length is None else {HEADER: str(json_length)}
        media = "application/json" if json_length is None else "application/octet-stream"
        return Response(b"".join(parts), headers=headers, media_type=media)

    async def index(_: Request) -> Response:
        rows = [
            {
                "name": name,
                "version": repository.version(name),
                "state": "READY",
                "reason": pack_id(repository.pack_of(name)),
            }
            for name in list(repository.batchers)
        ]
        return JSONResponse(rows)

    async def reload(request: Request) -> Response:
        path = repository.path_of(request.path_params["name"])
        await asyncio.to_thread(observing.hand_over, repository, path)
        return JSONResponse({})

    async def unload(request: Request) -> Response:
        repository.batcher(request.path_params["name"])
        raise InvalidRequest("models are not unloaded one by one; stop the server, or serve other packs")

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(observing.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    route("/v2/health/live", live)
    route("/v2/health/ready", ready)
    route("/v2", server_metadata)
    for base in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        route(base, model_metadata)
        route(f"{base}/ready", model_ready)
        route(f"{base}/infer", infer, ("POST",))
    route("/v2/models/{name}/expected", model_expected)
    route("/v2/repository/index", index, ("POST",))
    route("/v2/repository/models/{name}/load", reload, ("POST",))
    route("/v2/repository/models/{name}/unload", unload, ("POST",))
    if observing.has_metrics:
        route("/metrics", metrics)
    return app


async def _no_such_call(request: Request, _: Exception) -> Response:
    return JSONResponse({"error": f"{request.method} {request.url.path} is no call of the open inference protocol"}, 404)


async def _refusing(handler: Handler, observing: Observing, request: Request) -> Response:
    """The handler's answer, or what was wrong in the protocol's form; the server lives on."""
    try:
        return await handler(request)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    except Exception as error:
        refusal: Refusal = refusal_of(error)
        observing.refused(request.path_params.get("name", ""), HTTP, refusal)
        headers = {"Connection": "close"} if isinstance(refusal, (TooLarge, TooSlow)) else {}
        return JSONResponse({"error": str(refusal)}, refusal.status, headers)


async def _body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body. TooLarge before more than ``most`` bytes lie in memory; TooSlow behind ``seconds``."""
    length = request.headers.get("content-length", "0")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequest("a body must not be compressed; send it as it is")
    if length.isdecimal() and int(length) > most:
        raise TooLarge(f"the request has {length} bytes, at most {most} are taken; send a smaller one")
    parts, size = list[Any](), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLarge(f"the request has more than the {most} bytes that are taken; send a smaller one")
                parts.append(part)
    except TimeoutError as error:
        raise TooSlow(f"the request was not sent within {seconds:g} s; send it faster") from error
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
