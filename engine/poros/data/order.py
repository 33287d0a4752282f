"""Orders that depend on whole numbers alone: the same on every machine and with every library.

A library's shuffle may change between its versions, and then a resumed run would see other batches.
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def random_words(*keys: int) -> Iterator[int]:
    """Endless 64-bit words (SplitMix64), a function of the keys and of their order."""
    state = 0
    for key in keys:
        state = _mix((state + _GOLDEN_GAMMA) & _MASK ^ key & _MASK)
    while True:
        state = (state + _GOLDEN_GAMMA) & _MASK
        yield _mix(state)


def below(word: int, bound: int) -> int:
    """A 64-bit word brought into ``range(bound)`` by multiply and shift."""
    return word * bound >> 64


def permutation(length: int, *keys: int) -> list[int]:
    """The numbers below ``length``, shuffled (Fisher-Yates) as the keys say."""
    order = list(range(length))
    words = random_words(*keys)
    for last in range(length - 1, 0, -1):
        other = below(next(words), last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31
