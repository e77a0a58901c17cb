"""Record to JSON and back, strictly: what was not written by ``encode`` is refused by ``decode``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from haotuner.errors import UsageError
from haotuner.spec.composition import COLUMNS, WHOLE, Composition, Part
from haotuner.spec.op import Op
from haotuner.spec.record import RECORD_SCHEMA, Failed, OpName, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)  # `json.dumps` builds one a call
_FIELDS = frozenset({"schema", "id", "trial", "outcome", "device_id", "fingerprint", "session", "when", "seed", "facts"})
_TRIAL = frozenset({"op", "kernel", "shape", "threads", "weights", "split"})
_REPEAT = frozenset({"repeat"})  # not written for the first time a trial is measured, nor before there were repeats
_TIMED = frozenset({"samples_us", "max_error"})
_FAILED = frozenset({"stage", "reason", "detail"})


def encode(record: Record) -> dict[str, Any]:
    """The JSON form of one record; floats keep every bit."""
    trial, outcome = record.trial, record.outcome
    return {
        "schema": RECORD_SCHEMA,
        "id": record.id,
        "trial": {
            "op": trial.op.name,
            "kernel": trial.kernel,
            "shape": trial.shape.as_dict(),
            "threads": trial.threads,
            "weights": trial.weights,
            "split": trial.split,
            **({"repeat": trial.repeat} if trial.repeat else {}),
        },
        "outcome": {"samples_us": [float(s) for s in outcome.samples_us], "max_error": float(outcome.max_error)}
        if isinstance(outcome, Timed)
        else {"stage": outcome.stage, "reason": outcome.reason, "detail": outcome.detail},
        "device_id": record.device_id,
        "fingerprint": record.fingerprint,
        "session": record.session,
        "when": float(record.when),
        "seed": record.seed,
        "facts": dict(record.facts),
    }


def line(data: Mapping[str, Any]) -> str:
    """Canonical JSON text of an encoded record: sorted keys, ASCII, one line, no NaN."""
    return _CANONICAL.encode(data)


def decode(data: object, *, verify: bool = True) -> Record:
    """The record of an encoded form; ``verify`` computes the content hash again (a third of the cost).

    Raises:
        ValueError: a key is missing or unknown, a value has another type or range, the schema is another, or the
            content hash does not fit the content.
    """
    fields = _keys(data, _FIELDS, "record")
    if fields["schema"] != RECORD_SCHEMA:
        raise ValueError(f"record schema {fields['schema']!r}; this haotuner reads {RECORD_SCHEMA}")
    trial = _keys(fields["trial"], _TRIAL, "trial", optional=_REPEAT)
    if trial.get("repeat", 1) == 0:
        raise ValueError("repeat is 0, which is written by leaving it out")
    facts = _typed(fields, "facts", dict)
    for name, fact in facts.items():
        if isinstance(fact, bool) or not isinstance(fact, (int, float, str)):
            raise ValueError(f"fact {name!r} is {fact!r}, expected a number or a text")
    record = Record(
        trial=trial_of(
            _text(trial, "op"),
            _text(trial, "kernel"),
            _shape(trial["shape"]),
            threads=_typed(trial, "threads", int),
            weights=_text(trial, "weights"),
            split=_text(trial, "split"),
            repeat=_typed(trial, "repeat", int) if "repeat" in trial else 0,
        ),
        outcome=_outcome(fields["outcome"]),
        device_id=_text(fields, "device_id"),
        fingerprint=_text(fields, "fingerprint"),
        session=_text(fields, "session"),
        when=float(_typed(fields, "when", (int, float))),
        seed=_typed(fields, "seed", int),
        facts=facts,
    )
    if verify and record.id != fields["id"]:
        raise ValueError(f"content hash {fields['id']!r} does not fit the content, which hashes to {record.id}")
    return record


def trial_of(
    op: str, kernel: str, shape: Shape, *, threads: int = 1, weights: str = "cold", split: str = COLUMNS, repeat: int = 0
) -> Trial:
    """The trial of a record's texts. It writes the same texts again, whether or not this process can read them."""
    composition = Composition(_parts(kernel), split)
    return Trial(op=op_of(op), composition=composition, shape=shape, threads=threads, weights=weights, repeat=repeat)


def op_of(text: str) -> Op | OpName:
    """The operator that a record names; its name alone where that is not the name of one that this process knows."""
    try:
        op = _op(text)
    except UsageError:
        return OpName(text)
    return op if op.name == text else OpName(text)


@lru_cache(maxsize=4096)
def _op(text: str) -> Op:
    return Op.parse(text)  # of a kind that is learned later it raises, and nothing is stored


@lru_cache(maxsize=1 << 16)
def _parts(text: str) -> tuple[Part, ...]:
    """Regions of a kernel's text; a text that is no composition's is the name of one micro-kernel."""
    try:
        parts = Composition.parse(text).parts
    except ValueError:
        parts = ()
    whole = (Part(text, WHOLE),)
    return parts if Composition(parts).text == text else whole


def _outcome(data: object) -> Outcome:
    if isinstance(data, dict) and "samples_us" in data:
        timed = _keys(data, _TIMED, "outcome")
        samples = _typed(timed, "samples_us", list)
        if not all(type(s) is float for s in samples):
            raise ValueError(f"samples_us must be numbers with a decimal point, found {samples[:5]!r}")
        return Timed(samples_us=tuple(samples), max_error=float(_typed(timed, "max_error", (int, float))))
    failed = _keys(data, _FAILED, "outcome")
    return Failed(**{name: _typed(failed, name, str) for name in sorted(_FAILED)})


def _shape(data: object) -> Shape:
    if not isinstance(data, dict) or not all(isinstance(a, str) and type(e) is int for a, e in data.items()):
        raise ValueError(f"shape must map axis names to whole numbers, found {data!r}")
    return Shape.of(data)


def _keys(data: object, expected: frozenset[str], what: str, *, optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object, found {type(data).__name__}")
    if not expected <= data.keys() <= expected | optional:
        missing, unknown = sorted(expected - data.keys()), sorted(map(str, data.keys() - expected - optional))
        raise ValueError(f"{what}: missing keys {missing}, unknown keys {unknown}")
    return data


def _typed(data: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = data[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, of the wrong type")
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    value: str = _typed(data, name, str)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {value!r}, which no database can hold as text") from error
    return value
