"""Random 64-bit words that are computed, not generated: word i of a stream is a function of (key, i).

A bijective mix of a counter (the SplitMix64 finaliser over multiples of an odd constant). Any word
of any stream costs the same, so nothing has to be replayed to resume, and no two words of one stream are
equal. About 4 ns per word, no state. Not for secrets: the streams are statistically sound, not cryptographic.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

MAX_ROWS = 2**63 - 1  # rows are handed out as int64

# SplitMix64 (Steele, Lea, Flood 2014): the golden ratio as an odd step, then Stafford's mix 13.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


def key(seed: int, *parts: int | str) -> int:
    """A 64-bit hash of the seed and whatever else tells one stream from another (epoch, purpose, ...).

    Any Python int is a seed, negative and huge ones too. Parts are hashed with their type and length, so that
    (1, 23), (12, 3) and (1, "23") are unrelated keys, and so are (seed, epoch + 1) and (seed + 1, epoch).
    """
    import hashlib  # here: it brings OpenSSL, 3 ms at every import

    digest = hashlib.blake2b(digest_size=8, person=b"lowtide.order")
    for part in (seed, *parts):
        kind, payload = _encoded(part)
        digest.update(kind + len(payload).to_bytes(8, "little") + payload)
    return int.from_bytes(digest.digest(), "little")


def _encoded(part: int | str) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        return b"s", part.encode()
    number = integer("order.key", "seed or part", part)
    return b"i", number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def integer(where: str, name: str, value: object) -> int:
    """``value`` as a plain int, or a TypeError that names the argument (floats never pass for integers)."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{where}: expected an integer {name}, got {value!r} ({type(value).__name__}). Pass {name} as an int."
        ) from None


def row_count(where: str, n: object) -> int:
    """``n`` as a number of rows that int64 can count, or an error with the range."""
    count = integer(where, "n", n)
    if not 0 <= count <= MAX_ROWS:
        raise ValueError(f"{where}: expected n from 0 to 2**63 - 1, got {count}. Pass a number of rows.")
    return count


def words(stream: int, start: int, count: int) -> Words:
    """Words start .. start+count-1 of the stream with this key."""
    counters = np.arange(start, start + count, dtype=np.uint64)
    return mixed(stream, counters)


def mixed(stream: int, counters: Words) -> Words:
    """The stream's words at these counters, written over them: a bijection of the 64-bit counters."""
    counters *= _STEP
    counters += np.uint64((stream + int(_STEP)) % 2**64)
    shifted = np.empty_like(counters)
    for shift, factor in _MIX:
        np.right_shift(counters, shift, out=shifted)
        counters ^= shifted
        counters *= factor
    np.right_shift(counters, _LAST_SHIFT, out=shifted)
    counters ^= shifted
    return counters


def draws(n: int, *, seed: int, start: int, count: int, purpose: str = "sample") -> NDArray[np.int64]:
    """Draws start .. start+count-1 of an endless sample of rows 0 .. n-1 with replacement.

    Draw k is floor(word_k * n / 2**64), exact in two 64-bit words, so it needs no draw before it. A row's
    probability differs from 1/n by less than 2**-64: a relative bias below n / 2**64 (under 1e-9 for any n up
    to ten billion), in exchange for never rejecting, which is what keeps draw k in place k.
    """
    rows = row_count("order.draws", n)
    first, length = integer("order.draws", "start", start), integer("order.draws", "count", count)
    if first < 0 or length < 0 or first + length > MAX_ROWS:
        raise ValueError(
            f"order.draws: expected draws within 0 to 2**63 - 1, got start {first} and count {length}. "
            "Pass both as non-negative numbers."
        )
    if rows == 0 and length > 0:
        raise ValueError(f"order.draws: expected at least 1 row to draw {length} from, got 0. Pass n of 1 or more.")
    stream = key(seed, "draws", purpose)
    return _high_product(words(stream, first, length), rows).view(np.int64)


def _high_product(word: Words, n: int) -> Words:
    """The upper 64 of the 128 bits of word * n, by 32-bit halves; no partial sum here can pass 2**64."""
    n_low, n_high = np.uint64(n & 0xFFFFFFFF), np.uint64(n >> 32)
    low, high = word & _LOW_HALF, word >> _HALF
    middle = high * n_low + ((low * n_low) >> _HALF)
    if n_high == 0:
        return middle >> _HALF
    carry = low * n_high + (middle & _LOW_HALF)
    top: Words = high * n_high + (middle >> _HALF) + (carry >> _HALF)
    return top
