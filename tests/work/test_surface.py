"""What is predicted of kernels that were not timed, of families for which different units multiply."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.search.surface import Surface
from haotuner.words.op import Op
from haotuner.words.shape import Shape

GPU, OP = find_device("h200"), Op.parse("dense:n=2304,k=768,dtype=bf16")
ROWS = 1024


@pytest.mark.parametrize("name", ["cuda_gemv_bf16", "cuda_mma_bf16", "cuda_wgmma_bf16"])
def test_before_any_time_is_known_it_is_the_expected_one(name: str) -> None:
    """Tensor cores or not: a search compares kernels of both, and each is as slow as the units that it uses."""
    family = next(one for one in CUDA_FAMILIES if one.name == name)
    kernels = list(islice(family.points(OP, GPU), 3))
    surface = Surface(OP, GPU, dict.fromkeys(kernels, family), cache="cold", seed=0, model=None)
    keys = [(kernel.name, ROWS // surface.rows[kernel.name], 1, "cold") for kernel in kernels]
    wanted = demand(GPU, family, OP, [(kernel, Shape.of(m=ROWS)) for kernel in kernels])
    np.testing.assert_allclose(surface.times(keys), expected_us(GPU, wanted))
