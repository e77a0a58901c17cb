"""Foreign measurements into a record store, row by row, nothing swallowed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from haotuner.errors import EnvironmentMissing, UnknownDevice, UsageError
from haotuner.records.kernel_tuner import CacheFile, read_cache
from haotuner.records.loaded import Loaded
from haotuner.records.mapping import KernelMapping, choose
from haotuner.records.rows import Refusal, record_of, unkept
from haotuner.records.units import one_unit
from haotuner.spec.device import Device
from haotuner.spec.record import Record


def load_kernel_tuner(
    path: Path, *, find_device: Callable[[str], Device], device: str | None = None, mapping: str | None = None
) -> Loaded:
    """The rows of one Kernel Tuner cache file as records.

    Args:
        path: the file, gzipped or not, complete or cut at any byte.
        find_device: the device of a name, such as ``haotuner.hw_profiles.find.find_device``.
        device: overrides the file's ``device_name``.
        mapping: ``xgemm``, ``conv`` or ``dedispersion``; by default the one that knows the file's parameters.

    Raises:
        EnvironmentMissing: the file, or the device of this host that it names, cannot be read.
        UnknownDevice: ``find_device`` knows no such device.
        UsageError: not a cache file, no mapping fits, the device cannot run such kernels, the times are of several units,
            or not one timed row is usable. The message names the file.
    """
    cache = read_cache(path)
    rule = _rule(cache, mapping)
    result = _device(cache, rule, device, find_device)
    records: list[Record] = []
    refused: Counter[str] = Counter(cache.odd)
    dropped: Counter[str] = Counter()
    for _, row in cache.rows:
        try:
            records.append(record_of(cache, row, rule, result))
            dropped.update(unkept(row, rule))
        except Refusal as refusal:
            refused[str(refusal)] += 1
    try:
        sound, odd = one_unit(records)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return Loaded(
        path=path,
        wanted="usable row" if not records else "usable timed row",
        records=tuple(sound),
        rows=len(cache.rows) + sum(cache.odd.values()),
        refused=refused + odd,
        dropped=dropped,
        mapping=rule.name,
        torn=cache.torn,
    )


def _rule(cache: CacheFile, mapping: str | None) -> KernelMapping:
    """The mapping, found to fit all of the file."""
    try:
        rule = choose(cache.keys, mapping)
        rule.fits(cache.problem_size)
    except UsageError as error:
        raise UsageError(f"{cache.path}: {error}") from error
    for key in rule.unknown(cache.keys):  # must not vary, or two kernels would get one name
        values = {json.dumps(row.get(key)) for _, row in cache.rows}
        if len(values) > 1:
            raise UsageError(
                f"{cache.path}: mapping {rule.name} does not know the parameter {key}, which takes {len(values)} values; "
                "import the rows of one value from a file of their own"
            )
    return rule


def _device(cache: CacheFile, rule: KernelMapping, inputs: str | None, find: Callable[[str], Device]) -> Device:
    """The device of the file, found to be one that such kernels run on."""
    try:
        device = find(inputs or cache.device_name)
    except UnknownDevice as error:
        hint = "" if inputs else "; name a known device with --device, or add a profile (haotuner/hw_profiles/README.md)"
        raise UnknownDevice(f"{cache.path}: {error}{hint}") from error
    except EnvironmentMissing as error:  # the file names a device of this host, which cannot answer
        raise EnvironmentMissing(f"{cache.path}: {error}") from error
    if device.kind not in rule.kinds:
        raise UsageError(
            f"{cache.path}: {rule.family} runs on GPUs, and {inputs or cache.device_name!r} is {device.id}, "
            f"of kind {device.kind}; name the GPU that was measured with --device"
        )
    return device
