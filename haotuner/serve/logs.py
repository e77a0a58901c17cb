"""Logs of a server to stderr: a line an event, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from haotuner.serve.repository import LOG


class Text(logging.Formatter):
    """``2026-01-31T10:00:00Z info serving port=8000``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        facts = " ".join(f"{name}={value}" for name, value in facts_of(record).items())
        return f"{_time(record)} {record.levelname.lower()} {record.getMessage()} {facts}".rstrip().replace("\n", " ")


class Json(logging.Formatter):
    """An object with time, level, event, and the event's facts."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        head = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**head, **facts_of(record)}, default=str)


FORMATS = {"text": Text, "json": Json}


def log_to_stderr(form: str) -> logging.Handler:
    """Begin to log in one of ``FORMATS``; the handler, which a caller may take away again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATS[form]())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    return handler


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """Facts of an event, and the traceback's last line where there is one."""
    facts = dict(getattr(record, "facts", {}))
    if record.exc_info and record.exc_info[1] is not None:
        facts["error"] = repr(record.exc_info[1])
    return facts


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
