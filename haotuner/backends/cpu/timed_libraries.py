"""Libraries that a timing process has loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi

from haotuner.isolate.answers import Refusal

KEPT = 48  # of a few hundred kilobytes each


class Libraries:
    """Functions by the path of their library; the oldest library is let go when there are many."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def function(self, path: str, name: str) -> Callable[..., Any]:
        """One exported function; Refusal if the library does not load or has none of that name."""
        if path not in self._loaded:
            if len(self._loaded) >= KEPT:
                self._loaded.pop(next(iter(self._loaded)))
            try:
                self._loaded[path] = tvm_ffi.load_module(path)
            except Exception as error:  # a library that does not load is data
                raise Refusal("load", "error", str(error)[:2000]) from error
        try:
            result: Callable[..., Any] = self._loaded[path].get_function(name)
        except Exception as error:
            raise Refusal("load", "error", str(error)[:2000]) from error
        return result
