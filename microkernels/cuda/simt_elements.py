"""Elements that a program of CUDA cores loads and multiplies: floats, or words of four bytes, which it may gather."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """One element of k, or four bytes of it, as TVM and the device functions name it, and how sums end."""

    word: int  # elements of k
    words: int  # of a load
    gathered: bool
    dtype: str  # of a register
    memory: str  # of the operands
    fetch: str
    dot: str  # empty: a product that is added
    stored: str


def elements_of(word: int, words: int, *, gathered: bool, signs: str) -> Elements:
    """Of loads of so many words; ``word``: elements of k that are multiplied at once, ``signs``: of bytes, of X and W."""
    if word == 1:
        fetch, floats = "ht_fetch_floats", "float32"
        return Elements(
            word=1, words=words, gathered=False, dtype=floats, memory=floats, fetch=fetch, dot="", stored="ht_store_strips<"
        )
    return Elements(
        word=word, words=words, gathered=gathered, dtype="int32", memory="uint8" if gathered else "int32",
        fetch="ht_fetch_words", dot=f"ht_dot_{signs}", stored="ht_store_byte_strips<",
    )  # fmt: skip
