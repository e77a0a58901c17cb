"""Functions of a (rows, 8) tensor, rows at least 2, by the kind of ATen operators that they call; some draw numbers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

WAYS = ("sum", "prod", "amax", "amin", "mean")


def thirds(x: Any) -> Any:
    """Whole numbers from 0 to 2."""
    return (3 * x).long().abs() % 3


def image(x: Any) -> Any:
    """(rows, 4, 6, 8)."""
    return (x[:, None, None, :] * torch.linspace(-1, 2, 24).reshape(1, 4, 6, 1)).sin()


def scattered(x: Any) -> Any:
    rows, index = x.new_ones(x.shape[0], 3), thirds(x)
    whole = [rows.long().scatter_reduce(1, index, (5 * x).long(), how, include_self=own)
             for how in WAYS for own in (True, False)]  # fmt: skip
    real = [rows.scatter_reduce(1, index, x, how, include_self=own) for how in WAYS for own in (True, False)]
    by_row = [torch.ones(3, 8).index_reduce(0, index[:, 0], x, how, include_self=own)
              for how in WAYS[1:] for own in (True, False)]  # fmt: skip
    return (*whole, *real, *by_row, rows.scatter(1, index, x, reduce="multiply"), rows.scatter(1, index, 2.0, reduce="add"),
            torch.ones(3, 8).scatter_reduce(0, index, x, "mean", include_self=False))  # fmt: skip


def ordered(x: Any) -> Any:
    some = torch.where(x > 0.5, x / x * torch.nan, x)
    return (*x.kthvalue(3, 1), x.kthvalue(2, 0, keepdim=True)[0], x.median(), *x.median(1), x.median(0, keepdim=True)[0],
            some.median(1)[0], some.nanmedian(), some.nanmedian(1)[0], (x[:, :1] / 0 * 0).nanmedian(1)[0],
            thirds(x).mode(1)[0], thirds(x).mode(0, keepdim=True)[0], thirds(x).median(0)[0], x.logcumsumexp(1),
            (60 * x).logcumsumexp(0), x.cumprod(0), *x.cummax(1), x.cummin(0)[0])  # fmt: skip


def of_data(x: Any) -> Any:
    """How large a result is only the data tell."""
    index = thirds(x)
    return (torch.bincount(index.flatten(), minlength=2), torch.bincount(index[0], x[0]), *index.unique(return_counts=True),
            index.unique(return_inverse=True)[1], *torch.unique_consecutive(index, return_inverse=True, return_counts=True),
            x.repeat_interleave(index[:, 0] + 1, 0), x.masked_select(x > 0))  # fmt: skip


def repeated(x: Any) -> Any:
    times = torch.tensor([1, 2, 0, 1, 1, 3, 1, 0])
    return (x.repeat_interleave(times, 1), x.repeat_interleave(times, 1, output_size=9), x.repeat_interleave(2, 0),
            torch.searchsorted(x, x + 0.1, sorter=x.argsort(1)))  # fmt: skip


def of_one_element(x: Any) -> Any:
    zero, index = x.sin() * 0, thirds(x)
    known = torch.where(x > 0.5, x / x * torch.nan, x)
    return ((x.sin() * 0.9999).erfinv(), torch.stack([x.new_ones(1), -x.new_ones(1), 2 * x.new_ones(1)]).erfinv(), x.erfc(),
            (3 * x).erfc() * (9 * x * x).exp(), torch.special.ndtr(x), x.copysign(-x), x.copysign(-1.0), x.copysign(zero),
            known.fmax(x), x.fmin(known),
            index << 2, -index >> 1, index.int() << index.int(), (-7 * index).int() >> index.int(),
            torch.ldexp(x, index), 2 % (x.abs() + 1), 5 % (index + 1), x.round(decimals=2), (100 * x).round(decimals=-1),
            x.angle(), F.rrelu(x))  # fmt: skip


def joined(x: Any) -> Any:
    y = image(x)
    ways = (torch.arange(24.0).reshape(3, 8) - 20, torch.arange(0, x.shape[0]) * 3)
    return (torch.dist(x, x + 1), torch.dist(x, 2 * x, 3), F.bilinear(x, x + 1, torch.linspace(0, 1, 192).reshape(3, 8, 8)),
            torch.addbmm(torch.ones(4, 4), y[:, :, 0], y[:, :, 1].mT, beta=2, alpha=0.5),
            F.embedding_bag(thirds(x).flatten(), *ways, mode="max", padding_idx=2))  # fmt: skip


def pooled(x: Any) -> Any:
    y = image(x)
    values, places = F.max_pool2d(y, 2, return_indices=True)
    wide, inside = F.max_pool2d(y, 3, 2, 1, return_indices=True)
    return (values, places, wide, inside, F.max_unpool2d(values, places, 2), F.avg_pool2d(y, 3, 2, 1, divisor_override=2),
            F.adaptive_max_pool2d(y, (4, 3)), F.adaptive_max_pool1d(x[:, None], 3), F.pixel_shuffle(y[None], 2),
            F.pixel_shuffle(y[0], 2), F.interpolate(y, scale_factor=0.5, mode="bilinear", antialias=True),
            F.interpolate(y, size=(3, 5), mode="bicubic", antialias=True))  # fmt: skip


FUNCTIONS = (scattered, ordered, of_data, repeated, of_one_element, joined, pooled)


def laws(x: Any) -> dict[str, tuple[Any, float, float]]:
    """Of (rows, 8) zeros: what is drawn by each operator, its mean and deviation."""
    third = 1 / 3
    return {
        "randn_like": (torch.randn_like(x), 0, 1),
        "rand_like": (torch.rand_like(x), 0.5, 12**-0.5),
        "randn": (torch.randn(x.shape, dtype=torch.float64), 0, 1),
        "randint": (torch.randint(2, 7, x.shape), 4, 2**0.5),
        "randint_like": (torch.randint_like(x, 3), 1, (2 / 3) ** 0.5),
        "normal": (torch.normal(x + 3, 2.0), 3, 2),
        "normal_": (torch.empty_like(x).normal_(1, 2), 1, 2),
        "uniform_": (torch.empty_like(x).uniform_(-1, 1), 0, third**0.5),
        "bernoulli": (torch.bernoulli(x + 0.25), 0.25, 0.1875**0.5),
        "bernoulli_": (torch.empty_like(x).bernoulli_(0.25), 0.25, 0.1875**0.5),
        "exponential": (torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
        "multinomial": (torch.multinomial(x + torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 3]), 1), 5.25, 7 * 0.1875**0.5),
        "dropout": (F.dropout(x + 1, 0.25), 1, third**0.5),
    }
