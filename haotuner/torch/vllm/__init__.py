"""vLLM: its linears on CPUs, served from a pack.

The plugin is in vLLM's group ``vllm.general_plugins``.

    vllm serve MODEL --additional-config '{"haotuner": {"pack": "PACK"}}'
    LLM(model=MODEL, additional_config={"haotuner": {"pack": "PACK"}})

vLLM calls ``register`` in each of its processes. Without the key nothing changes.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Entry point: put packed linears behind vLLM's own choice of a CPU kernel. Twice is harmless."""
    from haotuner.torch.vllm.plugin import install

    install()
