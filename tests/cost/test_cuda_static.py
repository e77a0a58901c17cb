"""The page of what can be seen of CUDA kernels without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from haotuner.backends.cuda.device_code import Cubin
from haotuner.backends.cuda.sass import Code, Loop, find_nvdisasm, mix
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from tests.bench.cuda_static import ABSENT, COLUMNS, DEVICES, ROWS, Row, Seen, cells, first_choices, others, page

H200 = find_device("h200", measure=False)
FAMILY = CudaWgmma("cuda_wgmma_bf16", "bf16")
KERNEL = FAMILY.kernel(bm=64, bn=64, st=4)
LOOP = Loop(("HGMMA.64x64x16.F32.BF16 R24, gdesc[UR24], R24", "UIADD3 UR4, UR5, 0x2, URZ", "@P0 BRA `(.L_x_3)") * 4)
CODE = Code(("STG.E.128 desc[UR4][R2.64], R4", "STG.E desc[UR4][R2.64], R4", *LOOP.instructions), (LOOP,))
needs_tools = pytest.mark.skipif(
    shutil.which("nvcc") is None or find_nvdisasm() is None, reason="nvcc and nvdisasm: no CUDA toolkit"
)


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_first_choice_for_each_number_of_rows(name: str) -> None:
    device = find_device(name, measure=False)
    rows = list(first_choices(device, "bf16"))
    assert [row.m for row in rows] == list(ROWS)
    assert all(row.family.runs_on(device) and row.family.dtype == "bf16" for row in rows)
    hopper = device.arch == "sm_90a"
    assert rows[-1].operation == ("HGMMA" if hopper else "HMMA")


def test_a_row_has_one_thing_a_cell() -> None:
    facts = {"registers": 64.0, "spill_bytes": 0.0, "static_shared_bytes": 0.0}
    cubin = Cubin(path=Path("x"), arch="sm_90a", compiler="nvcc 13.0", resources={KERNEL.name: facts}, seconds=0.0)
    row, seen = Row(device=H200, m=16, family=FAMILY, kernel=KERNEL), Seen(CODE, 64)
    alone = dict(zip(COLUMNS, cells(row, seen, cubin, None), strict=True))
    assert (alone["bytes a step"], alone["matrix instructions in the loop"]) == (str(128 * 64 * 2), "4 HGMMA")
    assert (alone["other instructions for each"], alone["16-byte stores"], alone["narrower stores"]) == ("2.00", "1", "1")
    assert alone["Triton: registers"] == ABSENT
    beside = dict(zip(COLUMNS, cells(row, seen, cubin, Seen(CODE, 90)), strict=True))
    assert (beside["Triton: registers"], beside["Triton: others for each"]) == ("90", "2.00")


def test_a_kernel_without_the_instruction_or_a_loop_is_said_so() -> None:
    assert others(Seen(CODE, 1), "HMMA") == "no HMMA"
    assert others(Seen(Code(("EXIT",), ()), 1), "HMMA") == "no loop"


def test_the_mix_of_a_kernel_is_that_of_its_main_loop() -> None:
    assert mix(CODE) == {"loop_instructions": 12.0, "loop_multiplies": 4.0, "loop_width": 128.0, "loop_local_loads": 0.0}
    spilled = Loop(("FFMA R1, R2, R3, R1", "LDL R3, [R1]") * 5)
    assert mix(Code(spilled.instructions, (spilled,)))["loop_local_loads"] == 5
    assert mix(Code(("EXIT",), ())) == {}


@pytest.mark.slow
@needs_tools
def test_the_page_is_the_same_twice(tmp_path: Path) -> None:
    rows = [row for row in first_choices(H200, "bf16") if row.m == 256]
    first, second = (page(rows, tmp_path, tmp_path / "cache", None) for _ in range(2))
    assert first == second
    assert sum(line.startswith("| h200 |") for line in first.splitlines()) == 1
