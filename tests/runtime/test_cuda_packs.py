"""What CUDA packs hold and who may load them, without any driver: tables, levels, merging, what CPU packs stay free of."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.backend import Choice
from haotuner.backends.cpu.pack_source import CONV_SOURCES
from haotuner.backends.cpu.pack_source import PACK_SOURCES as CPU_SOURCES
from haotuner.backends.cuda.pack_products import CudaEntry, PackedCudaDense
from haotuner.backends.cuda.pack_source import PACK_SOURCES, needs, pack_data, reduced
from haotuner.errors import EnvironmentMissing, HaotunerError, PackInvalid, PackMismatch, UsageError
from haotuner.microkernels.index import family_named
from haotuner.pack.levels import level_hashes
from haotuner.pack.manifest import read_levels, read_manifest
from haotuner.pack.merge import merge
from haotuner.plan.table import CellTable, RowTable
from haotuner.runtime.device_memory import Gpu, find_gpu, ordinal_of
from haotuner.spec.composition import Composition, Part, Planned
from haotuner.spec.cuda_arch import cuda_arch, driver_words, needed_driver, runs
from haotuner.spec.op import Op
from tests.microkernels.little_cubin import FLAGS, little_cubin
from tests.runtime.cuda_packs import PICKS, SIMT, WGMMA, Pick, make_pack, packed_op
from tests.runtime.packs import LANES, best_level
from tests.runtime.packs import make_pack as make_cpu_pack
from tests.runtime.packs import packed_op as cpu_op


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Device code by architecture, no more than what is read of it on the host."""
    folder = tmp_path_factory.mktemp("cubin")
    for arch, flags in FLAGS.items():
        (folder / f"{arch}.cubin").write_bytes(little_cubin(flags=flags))
    return {arch: folder / f"{arch}.cubin" for arch in FLAGS}


def made(folder: Path, pick: Pick, cubin: dict[str, Path], name: str = "pack", **device: Any) -> Path:
    return make_pack(folder / name, [packed_op(pick.op, pick.kernels, pick.cells)], pick.arch, cubin[pick.arch], **device)


def choice(table: RowTable | CellTable) -> Choice:
    op = Op.parse(SIMT.op)
    family = family_named(SIMT.kernels[0].family)
    return Choice(op=op, family=family, kernels=SIMT.kernels, tables=[table], ranges={"m": (2, 6)})


def test_a_table_of_rows_becomes_cells_and_a_table_of_cells_stays():
    first, second = (kernel.name for kernel in SIMT.kernels)
    single = Composition.of(first)
    two = Composition((Part(first, 2), Part(second, 1)), "serial")
    split = Composition((Part(first, 1),), "k4")
    rows = [split, split, single, single, two, two]
    table = RowTable(threads=1, axis="m", entries=tuple(Planned(row, 1.0) for row in rows), curves={})
    packed = PackedCudaDense.of(choice(table))
    entries = [CudaEntry(regions=((0, 0),), splits=4), CudaEntry(regions=((0, 0),)), CudaEntry(regions=((0, 2), (1, 0)))]
    assert (packed.bounds, packed.entries) == ([2, 4, 6], entries)
    cells = CellTable(threads=1, bounds={"m": (3, 9)}, entries=(single, two))
    assert PackedCudaDense.of(choice(cells)).bounds == [3, 9]
    with pytest.raises(ValueError, match="look up m alone"):
        PackedCudaDense.of(choice(CellTable(threads=1, bounds={"n": (3,)}, entries=(single,))))


@pytest.mark.parametrize(
    "cells, words",
    [
        ([(4, CudaEntry(regions=((0, 1), (1, 1), (0, 0))))], "one or two regions"),
        ([(4, CudaEntry(regions=((0, 0), (1, 0))))], "one or two regions"),
        ([(4, CudaEntry(regions=((0, 0),), splits=65))], r"1..64 parts of k"),
        ([(4, CudaEntry(regions=((0, 0),))), (4, CudaEntry(regions=((0, 0),)))], "ascending bound"),
        ([(0, CudaEntry(regions=((0, 0),)))], "ascending bound"),
    ],
)
def test_a_plan_that_the_library_could_not_look_up_is_refused(cells, words):
    with pytest.raises(ValueError, match=words):
        packed_op(SIMT.op, SIMT.kernels, cells)


def test_architectures():
    architectures = [cuda_arch(arch) for arch in ("sm_80", "sm_90a", "sm_100f", "sm_103a")]
    assert [(architecture.major, architecture.minor, architecture.exact) for architecture in architectures] == [
        (8, 0, False), (9, 0, True), (10, 0, False), (10, 3, True)]  # fmt: skip
    for arch in ("x86-64-v3", "sm_9", "sm_", "sm_9x", "sm_90b", "sm_090"):
        with pytest.raises(ValueError, match="no architecture"):
            cuda_arch(arch)
    for code, devices in {
        "sm_80": {(7, 5): False, (8, 0): True, (8, 9): True, (9, 0): False},
        "sm_86": {(8, 0): False, (8, 6): True, (8, 9): True},
        "sm_90a": {(9, 0): True, (9, 1): False, (10, 0): False},
        "sm_100a": {(10, 0): True, (10, 3): False},
        "sm_100f": {(10, 0): True, (10, 3): True, (12, 0): False},
        "sm_120": {(12, 0): True, (12, 1): True},
    }.items():
        assert {device: cuda_arch(code).runs_on(*device) for device in devices} == devices, code
    assert runs("sm_80", "sm_89") and not runs("sm_90a", "sm_100a") and not runs("x86-64-v3", "sm_80")


def test_the_driver_that_code_needs(cubin):
    """Any driver of the compiler's major release that knows the architecture."""
    assert [needed_driver(arch, 12) for arch in ("sm_75", "sm_90a", "sm_100a", "sm_103a", "sm_120", "sm_120f")] == [
        12000, 12000, 12080, 12090, 12080, 12090]  # fmt: skip
    assert needed_driver("sm_80", 13) == 13000 and needed_driver("sm_80", 11) == 12000, "the runtime's own calls"
    assert needs(cubin["sm_90a"].read_bytes(), "sm_90a") == 13000
    assert needs(little_cubin(flags=0x5A0D5A, abi=7), "sm_90a") == 12000
    assert driver_words(13000) == "13.0 (driver 580 or later)" and driver_words(12080) == "12.8 (driver 570 or later)"
    with pytest.raises(HaotunerError, match="not a whole cubin"):
        needs(b"!<arch>\n" + bytes(20), "sm_80")


@pytest.mark.parametrize("arch, other", [("sm_90", "sm_90a"), ("sm_90a", "sm_90")])
def test_code_of_a_variant_never_passes_for_another(tmp_path, cubin, arch, other):
    with pytest.raises(ValueError, match=f"the device code is for {other}, the pack for {arch}$"):
        pack_data([packed_op(SIMT.op, SIMT.kernels, SIMT.cells)], cubin[other], arch)
    whole = make_pack(tmp_path / "whole", [packed_op(SIMT.op, SIMT.kernels, SIMT.cells)], "sm_90a", cubin["sm_90a"])
    manifest = read_manifest(whole)
    assert not gpu(132, None, (9, 1)).runs(manifest) and not gpu(132, None, (10, 0)).runs(manifest)


def test_only_reductions_of_plans_that_split_are_asked_for(cubin):
    ops = [packed_op(pick.op, pick.kernels, pick.cells) for pick in PICKS]
    whole = packed_op("dense_n72_k56", SIMT.kernels, [(9, CudaEntry(regions=((0, 0),)))])
    assert reduced(ops) == ("fp32", "fp16") and reduced([whole]) == ()
    assert "haotuner_reduce" not in pack_data([whole], cubin["sm_80"], "sm_80")
    assert '"haotuner_reduce_fp32", NULL, NULL' in pack_data(ops[:1], cubin["sm_80"], "sm_80")


def test_what_packs_for_cpus_hold_is_free_of_device_code(tmp_path):
    for_cpus = {*CPU_SOURCES, *CONV_SOURCES}
    assert not [name for name in for_cpus if "cuda" in name]
    assert {name for name in PACK_SOURCES if "cuda" not in name} < for_cpus
    level = best_level()
    pack = make_cpu_pack(tmp_path / "cpu", [cpu_op("dense_n100_k37", LANES[level], 2 * LANES[level])], level)
    (library,) = pack.path.glob("lib/*.so")
    symbols = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in symbols and "dlopen" not in symbols


def test_the_manifest_says_the_device_and_a_weight_that_stays(tmp_path, cubin):
    pack = made(tmp_path, WGMMA, cubin)
    manifest = read_manifest(pack)
    (op,) = manifest.ops
    assert (manifest.arch, manifest.device_id, manifest.on_device) == ("sm_90a", "stand-in-sm-90a", True)
    assert op.unpacked_weight and op.threads == (1,) and {operand.dtype for operand in op.operands} == {"fp16"}
    assert op.tile_rows == (64, 32) and op.operands[1].compact


def test_a_pack_for_devices_alone_wants_a_device(tmp_path, cubin):
    pack = made(tmp_path, SIMT, cubin)
    with pytest.raises(
        PackMismatch, match=r"holds code for sm_80 devices and none for CPUs; name the device, as in .*cuda:0"
    ):
        haotuner.load(pack)


def test_no_driver_is_said(tmp_path, cubin):
    pack = made(tmp_path, SIMT, cubin)
    with pytest.raises(EnvironmentMissing, match="no CUDA driver .*install the NVIDIA driver"):
        find_gpu(0, library="libcuda-of-nobody.so.1")
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(EnvironmentMissing, match="cuda:0"):
            haotuner.load(pack, device="cuda")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "hip:0", 0, ""])
def test_another_name_of_a_device_is_refused(device):
    with pytest.raises(UsageError, match="name cuda, cuda:0"):
        ordinal_of(device)


def test_names_of_devices():
    assert [ordinal_of(device) for device in (None, "cpu", "cuda", "cuda:3")] == [None, None, 0, 3]


def gpu(units: int, gbps: float | None, capability: tuple[int, int] = (9, 0), driver: int = 13000) -> Gpu:
    major, minor = capability
    return Gpu(ordinal=0, name="a card", major=major, minor=minor, units=units, gbps=gbps, driver=driver)


def test_an_older_driver_is_refused_by_name_and_packs_that_do_not_say_still_load(tmp_path, cubin):
    manifest = read_manifest(made(tmp_path, WGMMA, cubin))
    assert manifest.driver == 13000
    gpu(132, None).check(manifest)
    gpu(132, None, driver=13010).check(manifest)
    words = (
        r"cuda:0 cannot serve the pack: its sm_90a code needs a driver for CUDA 13.0 \(driver 580 or later\); the one of "
        r"this host serves CUDA 12.4: update the NVIDIA driver, or tune again with a CUDA 12 compiler"
    )
    with pytest.raises(PackMismatch, match=words):
        gpu(132, None, driver=12040).check(manifest)
    silent = {key: value for key, value in manifest.document.items() if key != "driver"}
    gpu(132, None, driver=12040).check(replace(manifest, document=silent))


def test_of_several_levels_one_that_the_driver_takes_is_served(tmp_path, cubin):
    manifests = {}
    for name, bandwidth, needed in (("h200", 4800.0, 13000), ("h100", 3350.0, 12000), ("h100-pcie", 2000.0, 12000)):
        pack = made(tmp_path, WGMMA, cubin, name, id=name, compute_units=132, memory_gbps=bandwidth)
        manifest = read_manifest(pack)
        manifests[f"sm_90a/{name}"] = replace(manifest, document={**manifest.document, "driver": {"version": needed}})
    assert gpu(132, 4800.0).choose(manifests) == "sm_90a/h200"
    assert gpu(132, 4800.0, driver=12040).choose(manifests) == "sm_90a/h100", "the nearest of those whose code can be loaded"
    nearest = gpu(132, 4800.0, driver=11080).choose(manifests)
    with pytest.raises(PackMismatch, match="serves CUDA 11.8"):
        gpu(132, 4800.0, driver=11080).check(manifests[nearest])


def test_one_pack_for_cpus_and_devices_serves_each_with_its_own(tmp_path, cubin):
    level = best_level()
    cpu = make_cpu_pack(tmp_path / "cpu", [cpu_op(SIMT.op, LANES[level], 2 * LANES[level])], level).path
    ampere = made(tmp_path, SIMT, cubin, "ampere", id="a100", compute_units=108, memory_gbps=2000.0)
    hopper = {name: make_pack(tmp_path / name, [packed_op(SIMT.op, SIMT.kernels, SIMT.cells)], "sm_90a", cubin["sm_90a"],
                              id=name, compute_units=units, memory_gbps=gbps)
              for name, units, gbps in (("h200", 132, 4800.0), ("h100", 132, 3350.0), ("h100-pcie", 114, 2e3))}  # fmt: skip
    whole = merge([cpu, ampere, *hopper.values()], tmp_path / "whole")
    assert set(read_levels(whole) or {}) == {level, "sm_80/a100", *(f"sm_90a/{name}" for name in hopper)}
    weight = np.random.default_rng(0).standard_normal((72, 52), dtype=np.float32)
    with haotuner.load(whole) as pack:
        x = np.ones((3, 52), np.float32)
        assert np.allclose(pack.op(SIMT.op).bind(weight)(x), x @ weight.T, atol=1e-4)
    manifests = {level: read(whole, level) for level in read_levels(whole) or {}}
    for device, expected, planned in (
        (gpu(132, 4915.0), "sm_90a/h200", True),
        (gpu(132, 3352.0), "sm_90a/h100", True),
        (gpu(132, None), "sm_90a/h100", True),
        (gpu(16, 600.0), "sm_90a/h100-pcie", False),  # a MIG instance
        (gpu(84, 768.0, (8, 6)), "sm_80/a100", False),
    ):
        assert device.choose(manifests) == expected
        assert device.is_planned_for(manifests[expected]) == planned, expected
    with pytest.raises(
        PackMismatch, match=r"compute capability 7.5\); the pack holds code for .*sm_80/a100.* merge the packs"
    ):
        gpu(72, 300.0, (7, 5)).choose(manifests)
    with pytest.raises(PackMismatch, match="the pack holds code for x86-64"):
        gpu(132, 4800.0).check(read_manifest(cpu))
    assert merge([cpu, ampere], whole) == whole, "a pack of devices is ours to replace"


def read(pack: Path, level: str) -> Any:
    from haotuner.pack.manifest import read_level

    return read_level(pack, level, read_levels(pack) or {})


def test_merging_refuses_what_would_leave_a_device_without_an_op(tmp_path, cubin):
    pack = made(tmp_path, SIMT, cubin, "one", id="a100")
    other = make_pack(
        tmp_path / "other", [packed_op("dense_n72_k56", SIMT.kernels, SIMT.cells)], "sm_80", cubin["sm_80"], id="a10"
    )
    with pytest.raises(UsageError, match="differ in dense_n72_k52, dense_n72_k56"):
        merge([pack, other], tmp_path / "out")
    with pytest.raises(UsageError, match="are both for sm_80/a100"):
        merge([pack, made(tmp_path, SIMT, cubin, "two", id="a100")], tmp_path / "out")


@pytest.mark.parametrize(
    "level", ["sm_80", "sm_80/../x", "sm_80/a/b", "../sm_80/a", "sm_80/A1", "sm_8x/a1", f"sm_80/{'a' * 99}", 3]
)
def test_a_level_that_is_no_folder_of_ours_is_refused(level):
    with pytest.raises(ValueError, match="is not one of"):
        level_hashes({"levels": {level: "0" * 64}})


def test_a_level_is_the_one_that_its_folder_says(tmp_path, cubin):
    import json

    from tests.runtime.packs import put_manifest

    packs = [made(tmp_path, SIMT, cubin, name, id=name) for name in ("a100", "a10")]
    whole = merge(packs, tmp_path / "whole")
    levels = json.loads((whole / "manifest.json").read_text())
    hashes = levels["levels"]
    levels["levels"] = {"sm_80/a100": hashes["sm_80/a10"], "sm_80/a10": hashes["sm_80/a100"]}
    for file in ("manifest.json", "manifest.sha256"):
        first, second = (whole / "sm_80" / name / file for name in ("a100", "a10"))
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    put_manifest(whole, json.dumps(levels).encode())
    with pytest.raises(PackInvalid, match="was built for sm_80/a10, not for sm_80/a100"):
        read_manifest(whole)
