"""The CUDA C++ of one small micro-kernel a family, as generated for sm_90a: a change of the programs shows here first."""

from __future__ import annotations

import pytest

from haotuner.backends.cuda.translation_unit import device_unit
from tests.microkernels.cuda_examples import FAMILIES, VARIANTS, kernel_part


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_generated_kernel(golden, name):
    kernel = VARIANTS[name][0].kernel
    golden(kernel_part(device_unit({"dense": (FAMILIES[kernel.family], kernel)})))
