"""What the C runtime and Python share is written down once."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.spec import limits
from haotuner.spec.composition import WAYS


def test_the_header_is_what_the_module_makes() -> None:
    """After a change: python -m haotuner.spec.limits > haotuner/runtime/native/ht_limits.h."""
    assert (RUNTIME_SOURCES / "ht_limits.h").read_text() == limits.header()


def test_no_source_has_a_copy() -> None:
    names = {f"HT_{name}" for name in limits._NUMBERS}
    clib = RUNTIME_SOURCES.parent / "clib"
    for path in [p for folder in (RUNTIME_SOURCES, clib) for p in Path(folder).rglob("*.[ch]")]:
        if path.name != "ht_limits.h":
            defined = set(re.findall(r"#define (HT_\w+)", path.read_text()))
            assert not defined & names, path
    assert tuple(WAYS) == limits.SHARES == ("serial", "n", "m", "k")


def test_settings_are_told_apart() -> None:
    settings = [limits.CallSetting(*fields) for fields in product((0, 7, 255), (1, 33, 256), (False, True))]
    codes = [setting.encode() for setting in settings]
    assert [limits.CallSetting.decode(code) for code in codes] == settings and len(set(codes)) == len(codes)
    assert [limits.CallSetting.decode(code).threads for code in codes] == [setting.threads for setting in settings]
    assert limits.CallSetting(plan=7, threads=33, by_address=True).encode() == 7 + 256 * 33 + (1 << 20), "the C ABI's"


def test_shapes_of_four_axes_fit_into_a_key() -> None:
    """native/serve.c keeps the slots of all dynamic axes as the digits of one 64-bit number."""
    assert limits.EXTENT_SLOTS**limits.MAX_DYNAMIC < 2**64
    assert limits.MAX_OPS <= 256 <= limits.MAX_THREADS
