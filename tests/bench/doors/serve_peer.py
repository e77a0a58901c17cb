"""Plain uvicorn and ONNX Runtime behind the same protocol: ``python -m tests.bench.doors.serve_peer FILE THREADS HOW``.

``HOW``: ``plain``, a call a request, or ``buckets``: requests are padded to a bucket of lengths and joined for up to 2 ms,
as servers without dynamic shapes do. Prints its port, then answers inputs of whole numbers, (batch, seq), as binary tensors.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HEADER = "Inference-Header-Content-Length"
BUCKETS = (16, 32, 64, 128, 256, 512)
WAIT_S, MOST_ROWS = 0.002, 32


def session_of(file: Path, threads: int) -> Any:
    """ONNX Runtime's session of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class Plain:
    """Each request is a call, on one worker thread."""

    def __init__(self, session: Any) -> None:
        self._session, self._worker = session, ThreadPoolExecutor(1)

    async def answer(self, feeds: dict[str, Any]) -> Any:
        """The first output."""
        loop = asyncio.get_running_loop()
        return (await loop.run_in_executor(self._worker, self._session.run, None, feeds))[0]


class Buckets(Plain):
    """Requests of one bucket are padded to its length, with a mask of 0 there, and joined."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._waiting: dict[int, list[tuple[dict[str, Any], asyncio.Future[Any]]]] = {}

    async def answer(self, feeds: dict[str, Any]) -> Any:
        """The first output, without the padding."""
        length = next(iter(feeds.values())).shape[1]
        bucket = next(size for size in BUCKETS if size >= length)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        own = self._waiting.setdefault(bucket, [])
        own.append((feeds, future))
        if len(own) == MOST_ROWS:
            self._begin(bucket)
        elif len(own) == 1:
            asyncio.get_running_loop().call_later(WAIT_S, self._begin, bucket)
        return (await future)[:, :length]

    def _begin(self, bucket: int) -> None:
        if calls := self._waiting.pop(bucket, []):
            task = asyncio.get_running_loop().create_task(self._call(bucket, calls))
            task.add_done_callback(lambda _: None)  # held by the callback until it is done

    async def _call(self, bucket: int, calls: list[tuple[dict[str, Any], asyncio.Future[Any]]]) -> None:
        joined = {
            name: np.concatenate([np.pad(feeds[name], ((0, 0), (0, bucket - feeds[name].shape[1]))) for feeds, _ in calls])
            for name in calls[0][0]
        }
        loop, first = asyncio.get_running_loop(), 0
        output = (await loop.run_in_executor(self._worker, self._session.run, None, joined))[0]
        for feeds, future in calls:
            rows = len(next(iter(feeds.values())))
            future.set_result(output[first : first + rows])
            first += rows


def application(model: Plain) -> Any:
    """The FastAPI application."""
    import fastapi
    from starlette.requests import Request
    from starlette.responses import Response

    app = fastapi.FastAPI()

    async def infer(request: Request) -> Response:
        body, length = await request.body(), int(request.headers[HEADER])
        feeds, at = {}, length
        for item in json.loads(body[:length])["inputs"]:
            size = item["parameters"]["binary_data_size"]
            feeds[item["name"]] = np.frombuffer(body[at : at + size], np.int64).reshape(item["shape"])
            at += size
        output = np.ascontiguousarray(await model.answer(feeds))
        raw = output.tobytes()
        facts = {"name": "y", "datatype": "FP32", "shape": list(output.shape), "parameters": {"binary_data_size": len(raw)}}
        head = json.dumps({"model_name": "m", "outputs": [facts]}).encode()
        return Response(head + raw, headers={HEADER: str(len(head))}, media_type="application/octet-stream")

    app.router.add_route("/v2/models/{name}/infer", infer, methods=["POST"])
    return app


def main(file: str, threads: str, how: str) -> None:
    """Serve until stopped."""
    import uvicorn

    session = session_of(Path(file), int(threads))
    model = Buckets(session) if how == "buckets" else Plain(session)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvicorn does for an address that it binds itself
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(application(model), log_level="warning", access_log=False, lifespan="off", ws="none")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
