"""The keyed bijection of 0 .. n-1 in NumPy, forwards and backwards, as the C core has it.

n is ``heights`` rows of ``2**low_bits``; rounds change one half of a number by a hash of the other, and numbers that
land at n or above go through again. ``order/`` says why it is built this way and where the constants come from. Costs
about 30 ns per number in calls of 8,192 and four scratch arrays of at most 64 KiB. Knows no seeds and no epochs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# 4 arrays of 8,192 words stay in the second-level cache; fewer numbers per pass pay more per NumPy call.
PASS_LENGTH = 8192

_FACTOR = np.uint64(0xC4CEB9FE1A85EC53)  # the second multiplier of MurmurHash3's 64-bit finaliser
_HALF = np.uint64(32)


def permute(numbers: Words, n: int, constants: Words, tweaks: Words | None, inverted: bool) -> None:
    """Map the numbers, all below n, in place. ``constants``: two words per round; ``tweaks``: one per number."""
    network = _Network(n, constants, inverted)
    for start in range(0, len(numbers), PASS_LENGTH):
        here = slice(start, start + PASS_LENGTH)
        network.walk(numbers[here], None if tweaks is None else tweaks[here])


class _Network:
    def __init__(self, n: int, constants: Words, inverted: bool) -> None:
        self.n, self.inverted = np.uint64(n), inverted
        self.low_bits = (n - 1).bit_length() // 2
        self.heights = -(-n // (1 << self.low_bits))
        self.high_bits = (self.heights - 1).bit_length()
        pairs = constants.reshape(-1, 2)
        rounds = [(index % 2 == 0, factor | np.uint64(1), term) for index, (factor, term) in enumerate(pairs)]
        self.rounds = rounds[::-1] if inverted else rounds

    def walk(self, numbers: Words, tweaks: Words | None) -> None:
        """The rounds, repeated for numbers that land at n or above (cycle walking): exactly one to one."""
        self._pass(numbers, tweaks)
        outside = np.flatnonzero(numbers >= self.n)
        while len(outside):
            again = numbers[outside]
            self._pass(again, None if tweaks is None else tweaks[outside])
            numbers[outside] = again
            outside = outside[again >= self.n]

    def _pass(self, numbers: Words, tweaks: Words | None) -> None:
        low_bits, high_bits, heights = np.uint64(self.low_bits), np.uint64(self.high_bits), np.uint64(self.heights)
        low_shift, high_shift = np.uint64(64 - self.low_bits), np.uint64(64 - self.high_bits)
        high = numbers >> low_bits
        low = numbers & np.uint64((1 << self.low_bits) - 1)
        hashed, spare = np.empty_like(numbers), np.empty_like(numbers)
        # Forwards the high half is summed and brought back below heights; backwards the reverse. An unsigned
        # number that went below zero is huge, so in both directions the smaller of the two is the residue.
        change, wrap = (np.subtract, np.add) if self.inverted else (np.add, np.subtract)
        for into_high, factor, term in self.rounds:
            _hash(low if into_high else high, factor, term, tweaks, hashed, spare)
            if into_high:
                # floor(top bits * heights / 2**top): as many top bits as the product leaves room for
                np.right_shift(hashed, high_bits, out=hashed)
                np.multiply(hashed, heights, out=hashed)
                np.right_shift(hashed, high_shift, out=hashed)
                change(high, hashed, out=high)
                wrap(high, heights, out=spare)
                np.minimum(high, spare, out=high)
            elif self.low_bits:
                np.right_shift(hashed, low_shift, out=hashed)
                np.bitwise_xor(low, hashed, out=low)
        np.left_shift(high, low_bits, out=high)
        np.bitwise_or(high, low, out=numbers)


def _hash(half: Words, factor: np.uint64, term: np.uint64, tweaks: Words | None, out: Words, spare: Words) -> None:
    """MurmurHash3's finaliser with a keyed first step, for inputs of at most 32 bits.

    The first shift would not change so short an input, and the last one not the top bits, the only ones that a round
    uses; so one multiply-add, one shift and one multiply are left.
    """
    np.multiply(half, factor, out=out)
    np.add(out, term, out=out)
    if tweaks is not None:
        np.add(out, tweaks, out=out)
    np.right_shift(out, _HALF, out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.multiply(out, _FACTOR, out=out)
