"""The pack that tests of races share with those of the runtime."""

from __future__ import annotations

from tests.runtime.conftest import built_pack, copied

__all__ = ["copied", "built_pack"]
