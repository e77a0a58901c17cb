"""PyTorch: a pack's ops as ``torch.ops.haotuner.*``, and models served from it.

    compiled = torch.compile(model, backend="haotuner", dynamic=True)  # layers from a pack, the rest by Inductor
    print(haotuner.torch.ops_of(model))                           # which ops the model needs: `haotuner tune --op …`
    print(haotuner.torch.swap(model, pack))                       # in place; what was replaced, what was left and why
    handle = haotuner.torch.register(pack)
    module = haotuner.torch.ServedModel(pack, "MODEL")            # a whole model as a module
    y = torch.ops.haotuner.dense_n2304_k768(x, packed, bias)      # packed = handle.pack_weight(name, weight)

With a pack that was loaded for a device the same serves CUDA tensors, whose weights stay where they are.

A pack infers: gradients are refused.
"""

from __future__ import annotations

from haotuner.host.extras import require_torch

require_torch()

from haotuner.torch.convolution import PackedConvolution  # noqa: E402
from haotuner.torch.device_layer import DeviceLayer  # noqa: E402
from haotuner.torch.exporting import export  # noqa: E402
from haotuner.torch.layer import PackedLinear  # noqa: E402
from haotuner.torch.model import ServedModel  # noqa: E402
from haotuner.torch.ops import Registered, packed_tensor, register, share_threads  # noqa: E402
from haotuner.torch.required_ops import ops_of  # noqa: E402
from haotuner.torch.swap import (  # noqa: E402
    Swapped,
    WrongResult,  # noqa: E402
    swap,
    swap_linears,
)

__all__ = [
    "PackedConvolution",
    "PackedLinear",
    "DeviceLayer",
    "Registered",
    "ServedModel",
    "Swapped",
    "WrongResult",
    "export",
    "ops_of",
    "packed_tensor",
    "register",
    "share_threads",
    "swap",
    "swap_linears",
]


def __getattr__(name: str) -> object:
    """Names of before, for one release."""
    if name == "PlacedLayer":
        import warnings

        warnings.warn("haotuner.torch.PlacedLayer is called DeviceLayer now", DeprecationWarning, stacklevel=2)
        return DeviceLayer
    raise AttributeError(f"module 'haotuner.torch' has no attribute {name!r}")
