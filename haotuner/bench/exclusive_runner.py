"""Runner of contenders that take turns: one runs, the others are stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from haotuner.bench.contender import OURS
from haotuner.errors import HaotunerError
from haotuner.isolate.answers import ChildNotResponding, Job
from haotuner.isolate.child import Child

LIMIT_S = 900.0  # of one answer, loading among them
Watch = Callable[[str], None]  # is told of peers that are left out, and why


class Responder(Protocol):
    """A contender as a race sees it: `haotuner.isolate.child.Child`."""

    def begin(self, request: Mapping[str, Any]) -> None:
        """Hand it a request."""
        ...

    def finish(self, limit_s: float) -> Job:
        """Its answer; Unanswered if there is none."""
        ...


def greetings(children: Mapping[str, Child], watch: Watch) -> dict[str, Job]:
    """Greeting of each once it has loaded, one after the other. A peer that cannot is left out; HaotunerError if ours is."""
    result = {}
    for name, child in children.items():
        child.launch()
        try:
            result[name] = child.greeting(LIMIT_S)
        except ChildNotResponding as error:
            _left_out(name, error, watch)
    return result


class ExclusiveRunner:
    """Rounds of questions. A peer that fails is asked no more; HaotunerError where ours does."""

    def __init__(self, contenders: Mapping[str, Responder], watch: Watch) -> None:
        self._left, self._watch = dict(contenders), watch

    def round(self, number: int, request: Mapping[str, Any]) -> dict[str, Job]:
        """Everybody's answer to a request; who is asked first changes with the round's number."""
        names, result = list(self._left), {}
        first = number % len(names)
        for name in names[first:] + names[:first]:
            try:
                self._left[name].begin(request)  # not `ask`: a fresh process would not be the one that was asked before
                result[name] = self._left[name].finish(LIMIT_S)
            except ChildNotResponding as error:
                _left_out(name, error, self._watch)
                del self._left[name]
        return result


def _left_out(name: str, error: ChildNotResponding, watch: Watch) -> None:
    """A peer may fail: the race goes on without it. Ours may not."""
    if name == OURS:
        raise HaotunerError(f"the pack's model failed: {error}") from error
    watch(f"{name} is left out: {error}")
