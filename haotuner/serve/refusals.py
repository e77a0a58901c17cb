"""Refusals of a server: what was wrong with a request, and the code that each protocol has for it."""

from __future__ import annotations

from haotuner.errors import HaotunerError, PackClosed, UsageError


class Refusal(HaotunerError):
    """A request that is not answered. ``status``: HTTP's code; ``grpc``: name of gRPC's."""

    status, grpc = 500, "INTERNAL"


class InvalidRequest(Refusal):
    """The request itself is wrong: names, types, ranks, sizes, malformed text."""

    status, grpc = 400, "INVALID_ARGUMENT"


class UnknownModel(Refusal):
    """No pack of the server holds such a model."""

    status, grpc = 404, "NOT_FOUND"


class TooLarge(Refusal):
    """The request has more bytes than the server takes."""

    status, grpc = 413, "RESOURCE_EXHAUSTED"


class TooSlow(Refusal):
    """The client did not send its request in time."""

    status, grpc = 408, "DEADLINE_EXCEEDED"


class Overloaded(Refusal):
    """The queue is full, or the server stops: another server, or a later attempt, may answer."""

    status, grpc = 503, "UNAVAILABLE"


def refusal_of(error: BaseException) -> Refusal:
    """Refusal that a client is told of an error: its own mistake as one, all else as the server's."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, UsageError):
        return InvalidRequest(str(error))
    if isinstance(error, PackClosed):
        return Overloaded("the server stops; send the request again")
    if isinstance(error, MemoryError):
        return Overloaded("the server has no memory for this request; send a smaller one")
    return Refusal(f"the server failed at this request: {type(error).__name__}: {error}")
