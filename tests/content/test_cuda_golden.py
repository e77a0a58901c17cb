"""The CUDA C++ of one small micro-kernel a family, as generated for sm_90a: a change of the programs shows here first."""

from __future__ import annotations

import pytest

from haotuner.backends.cuda.compile import cuda_source, device_part
from tests.content.cuda_examples import FAMILIES, VARIANTS


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_generated_kernel(golden, name):
    kernel = VARIANTS[name][0].kernel
    golden(device_part(cuda_source({"dense": (FAMILIES[kernel.family], kernel)}, "sm_90a")))
