"""Torch's attention, taken apart such that its result lies in memory as the whole one's does."""

from __future__ import annotations

from typing import Any

ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3))  # of batch, heads, tokens, channels; each is its own inverse


def attention_taken_apart(torch: Any) -> dict[Any, Any]:
    """The entry of torch's table of decompositions, less its fault.

    A module that calls ``view`` on a result was traced with one that lies as the queries do. Torch's own definition has it
    by tokens first, whatever the queries are, and such a ``view`` is refused.
    """
    whole = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    own = torch._decomp.decomposition_table[whole]

    def attention(query: Any, *others: Any, **named: Any) -> tuple[Any, Any]:
        found, weights = own(query, *others, **named)
        like = torch.empty_like(query)
        for order in ORDERS:
            if like.permute(order).is_contiguous():
                return found.permute(order).contiguous().permute(order), weights
        return found, weights

    return {whole: attention}
