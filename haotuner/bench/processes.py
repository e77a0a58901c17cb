"""Contenders' processes: started together, run in turns, replaced after a fault, all ended at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Protocol

from haotuner.bench.child import PROGRAM
from haotuner.bench.contender import OURS, Setting, child_environment
from haotuner.errors import HaotunerError
from haotuner.isolate.answers import MISSING, ChildNotResponding, Job
from haotuner.isolate.child import Child
from haotuner.spec.record import Failed

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
        self._remaining, self._watch = dict(contenders), watch

    def round(self, number: int, request: Mapping[str, Any]) -> dict[str, Job]:
        """Everybody's answer to a request; who is asked first changes with the round's number."""
        names, result = list(self._remaining), {}
        first = number % len(names)
        for name in names[first:] + names[:first]:
            try:
                self._remaining[name].begin(request)  # not `ask`: a fresh process would not be the one that was asked before
                result[name] = self._remaining[name].finish(LIMIT_S)
            except ChildNotResponding as error:
                _left_out(name, error, self._watch)
                del self._remaining[name]
        return result


def _left_out(name: str, error: ChildNotResponding, watch: Watch) -> None:
    """A peer may fail: the race goes on without it. Ours may not."""
    if name == OURS:
        raise HaotunerError(f"the pack's model failed: {error}") from error
    watch(f"{name} is left out: {error}")


HELLO_LIMIT_S = 120.0  # importing torch took 3 s here; a loaded machine or a cold network disk takes a multiple
STRIKES = 3  # faults (not wrong results) after which a contender is no longer started: one bad shape is not the end of it


class Processes:
    """Children by name; each runs only while it is asked something. A context manager: leaving it ends every process."""

    def __init__(
        self, specs: Mapping[str, str], setting: Setting, environment: Mapping[str, str], packs: Mapping[str, str]
    ) -> None:
        self._specs, self._environment = dict(specs), dict(environment)
        self._settings = {name: replace(setting, pack=packs.get(name)) for name in specs}
        self._children: dict[str, Child] = {}
        self._strikes = dict.fromkeys(specs, 0)
        self._last: dict[str, Failed] = {}
        self._alone: dict[str, bool] = {}
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs."""
        for name in list(self._children):
            self._children.pop(name).close()

    def pids(self) -> list[int]:
        """Ids of the living processes."""
        return [child.pid for child in self._children.values() if child.pid is not None]

    def start(self) -> dict[str, Failed]:
        """Start whoever is not running and may still run; who failed to."""
        waiting: list[str] = []
        for name, spec in self._specs.items():
            if name not in self._children and name not in self.missing and self._strikes[name] < STRIKES:
                self._children[name] = contender_process(spec, self._settings[name], self._environment)
                self._children[name].launch()
                waiting.append(name)
        failed: dict[str, Failed] = {}
        for name in waiting:
            try:
                hello = self._children[name].greeting(HELLO_LIMIT_S)
            except ChildNotResponding as error:
                if error.reason == MISSING:
                    self._children.pop(name)
                    self.missing[name] = str(error)
                else:
                    failed[name] = self._fault(name, error)
            else:
                self.versions[name] = str(hello["version"])
                self._alone[name] = bool(hello["alone"])
        for name, strikes in self._strikes.items():
            if strikes >= STRIKES:
                failed[name] = self._last[name]
        return failed

    def ask_all(self, requests: Mapping[str, Mapping[str, Any]], limit_s: float) -> tuple[dict[str, Any], dict[str, Failed]]:
        """Ask several (work whose time is not counted), at once but for those who want to be alone; answers, failures."""
        answers: dict[str, Any] = {}
        failed: dict[str, Failed] = {}
        together = [name for name in requests if not self._alone[name]]
        for group in (together, *([name] for name in requests if self._alone[name])):
            begun: list[str] = []
            for name in group:
                try:
                    self._children[name].begin(requests[name])
                    begun.append(name)
                except ChildNotResponding as error:
                    failed[name] = self._fault(name, error)
            for name in begun:
                try:
                    answers[name] = self._children[name].finish(limit_s)
                except ChildNotResponding as error:
                    failed[name] = self._fault(name, error)
        return answers, failed

    def ask(self, name: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Ask one while all others stand still. Unanswered if there is no answer."""
        try:
            self._children[name].begin(request)  # not `ask`: a fresh process would not have prepared
            return self._children[name].finish(limit_s)
        except ChildNotResponding as error:
            self._fault(name, error)
            raise

    def names(self) -> list[str]:
        """Names of the contenders that run, in order given."""
        return [name for name in self._specs if name in self._children]

    def _fault(self, name: str, error: ChildNotResponding) -> Failed:
        failed = error.failed("run")
        if not error.alive:
            self._children.pop(name).close()
            self._strikes[name] += 1
            self._last[name] = failed
        return failed


def contender_process(spec: str, setting: Setting, environment: Mapping[str, str]) -> Child:
    """A contender's process, not yet started; ``spec`` is its ``module:Class``."""
    config = {"spec": spec, "setting": asdict(setting)}
    return Child(PROGRAM, config, environment=child_environment(environment, setting), rests=True)
