"""HTTP connections: uvicorn's protocol, which also bounds how many there are and how long a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from haotuner.serve.refusals import Overloaded


def impatient(seconds: float, most: int) -> Any:
    """A protocol class that gives the head of every request so many seconds, and refuses what ``most`` others came before.

    Uvicorn's own bound refuses the requests of all connections, in a text of its own.
    """
    words = {"error": f"{most} connections are open, and no more are served; send the request again later"}
    refusing = JSONResponse(words, Overloaded.status, {"Connection": "close"})

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc]
        """One connection. Its timer runs while a head is awaited, half of which may have come."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """The first head is awaited."""
            super().connection_made(transport)
            if len(self.connections) > most:
                self.app = refusing
            self._await_head()

        def data_received(self, data: bytes) -> None:
            """A head is awaited on where these bytes complete none."""
            super().data_received(data)
            running = self.cycle is not None and not self.cycle.response_complete
            if running:
                self._head_came()
            elif self._timer is None:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            """Nothing is awaited any more."""
            self._head_came()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Refuse what is no HTTP in the protocol's form; an answer that has begun ends there."""
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                refusal = JSONResponse({"error": f"{msg} Send HTTP/1.1"}, 400, {"Connection": "close"})
                lines = [b"HTTP/1.1 400 Bad Request", *(b": ".join(header) for header in refusal.raw_headers), b"", b""]
                self.transport.write(b"\r\n".join(lines) + refusal.body)
            self.transport.close()

        def _await_head(self) -> None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)

        def _head_came(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_late(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Impatient
