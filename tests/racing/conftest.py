"""The pack that tests of races share with those of the runtime."""

from __future__ import annotations

from tests.runtime.conftest import copied, made

__all__ = ["copied", "made"]
