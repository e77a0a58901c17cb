"""``Plugin``: vLLM's choice of a CPU kernel for each linear, with a pack's operators before its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.platforms import current_platform

from haotuner.torch.vllm.linear import serve_linear
from haotuner.torch.vllm.options import Options
from haotuner.torch.vllm.serving import Serving

# A child of vLLM's logger: its handler and level are vLLM's.
logger = init_logger("vllm.haotuner")


class Plugin:
    """One process's plugin: vLLM's function that it stands before, and the pack, open from the first layer on."""

    def __init__(self, dispatch: Callable[..., None]) -> None:
        self._dispatch = dispatch
        self._serving: Serving | None = None
        self._reasons: Counter[str] = Counter()

    def serving(self) -> Serving | None:
        """The pack that vLLM's configuration of now names, which takes the place of one before; None without one.

        Raises:
            UsageError: the configuration is of another form.
            PackInvalid: there is no pack, or it is damaged.
            PackMismatch: the pack is for another CPU.
        """
        config = get_current_vllm_config_or_none()
        options = None if config is None else Options.of(config.additional_config)
        if config is None or options is None:
            return None
        if self._serving is None or not self._serving.serves(options):
            if self._serving is not None:
                self._serving.close()
            self._serving = Serving(options, torch.get_num_threads())
            logger.info("haotuner %s: linears of the pack %s", self._serving.version, options.pack)
        self._serving.identify(config.additional_config)
        return self._serving

    def dispatch(self, layer: Any, remove_weight: bool) -> None:
        """Stand-in of ``dispatch_cpu_unquantized_gemm``: serve a layer from the pack, or leave it to vLLM's function.

        Args:
            layer: a layer whose weight is loaded.
            remove_weight: True of linears; False of embeddings and heads.
        """
        serving = self.serving()
        if serving is None:
            self._dispatch(layer, remove_weight)
            return
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        head = isinstance(layer, ParallelLMHead)
        embedding = not remove_weight
        why = serve_linear(layer, serving, embedding=embedding, head=head, replaces_head=self._replaces_head())
        if why:
            self.leave(layer, why)
            self._dispatch(layer, remove_weight)

    def leave(self, layer: Any, why: str) -> None:
        """Log once for each reason that vLLM's own kernel serves a layer."""
        self._reasons[why] += 1
        if self._reasons[why] == 1:
            logger.warning("haotuner leaves %s to vLLM: %s", getattr(layer, "prefix", "") or type(layer).__name__, why)

    @staticmethod
    def _replaces_head() -> bool:
        """True where nothing but the product reads a head's weight: no draft model, and logits of the model's own type."""
        config = get_current_vllm_config_or_none()
        if config is None or config.speculative_config is not None or config.lora_config is not None:
            return False
        head_dtype = getattr(config.model_config, "head_dtype", None)
        return head_dtype is None or head_dtype == config.model_config.dtype


def install() -> None:
    """Stand before vLLM's function, in a process whose platform is the CPU."""
    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils

    if isinstance(getattr(utils.dispatch_cpu_unquantized_gemm, "__self__", None), Plugin):
        return
    plugin = Plugin(utils.dispatch_cpu_unquantized_gemm)
    utils.dispatch_cpu_unquantized_gemm = plugin.dispatch
