"""Numbers of a noise table: float32 standard normals of a seed by Box and Muller (1958), and their
digest.

A pair of normals uses one Philox word: 32 bits for the radius, 32 for the angle. The rest is exact
on integers, or float32 + - * / and sqrt, one numpy call each, so every CPU and numpy release makes
the same bytes. The relative error is at most 5e-7, and the largest possible number is 6.76.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from es_queue.numerics import arrays
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.fingerprint import DIGEST_BYTES

Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

#: Raised by any change to the numbers below; a part of the file's name.
RECIPE = 2
#: Floats per Philox stream: small enough for the cache, large enough to outweigh numpy's calls.
CHUNK = 2**17
#: Normals of a stream that are made at once: their memory is used again.
PIECE = 2**14
#: Chunks that a thread makes before it takes more work.
BATCH = 4
#: Second half of the Philox key, which separates these streams from the run's plan.
DOMAIN = int.from_bytes(b"es-noise", "little")
#: Floats of a run, the smallest unit: whole Philox blocks, and half a chunk is whole runs.
RUN = 64

#: Minimax polynomials in the square of the argument, lowest coefficient first; errors relative to
#: the function. log(1 + x) = 2 artanh(r) with r = x / (2 + x), so this times r is -2 log(1 + x);
#: -1/3 <= r <= 0, error 4e-9.
LOG_SERIES = (-4.0, -1.33332634, -0.800498188, -0.559212029, -0.563566685)
#: Both for angles of at most pi/4: sin(a)/a with error 3e-9, and cos(a) with error 4e-8.
SIN_SERIES = (0.999999997, -0.166666502, 0.00833201645, -0.000195018217)
COS_SERIES = (1.0, -0.49999885, 0.04165578, -0.00135919)

SIZE_BITS, MANTISSA, ONE_HALF = (np.int32(bits) for bits in (0x7FFFFFFF, 0x007FFFFF, 0x3F000000))


class ChunkGenerator:
    """Makes chunks of a seed's table in its own buffers; for one thread at a time."""

    def __init__(self, seed: int) -> None:
        self._key = np.array([seed, DOMAIN], dtype=np.uint64)
        self._normals = np.empty(CHUNK, dtype="<f4")
        self._space = np.empty((4, CHUNK // 2), dtype=np.float32)

    def chunk(self, number: int) -> Floats:
        """Chunk ``number``: float32[CHUNK], valid until the next call."""
        counter = np.array([0, 0, number, 0], dtype=np.uint64)
        words = np.random.Philox(key=self._key, counter=counter).random_raw(CHUNK // 2)
        bits = words.astype("<u8", copy=False).view("<i4")
        first, second = self._normals[: CHUNK // 2], self._normals[CHUNK // 2 :]
        radius = radii(bits[: CHUNK // 2], self._space)
        np.copyto(first, radius)
        along, across = directions(bits[CHUNK // 2 :], self._space)
        np.multiply(first, across, out=second)
        np.multiply(first, along, out=first)
        return self._normals


def radii(bits: Ints, space: Floats) -> Floats:
    """sqrt(-2 log u) for u = (unsigned bits + 1/2) / 2^32, precise near both ends; ``bits``
    int32[n]. ``space`` float32[4, n] is overwritten and contains the result.
    """
    signed, upper, exponent = space[0], space[1].view(np.int32), space[2].view(np.int32)
    excess = space[3]
    np.copyto(signed, bits)
    np.add(signed, np.float32(0.5), out=signed)
    np.multiply(signed, np.float32(2.0**-32), out=signed)  # u where that is below 1/2, else u - 1
    np.right_shift(signed.view(np.int32), 31, out=upper)
    np.bitwise_and(signed.view(np.int32), SIZE_BITS, out=exponent)
    mantissa = excess.view(np.int32)
    np.bitwise_and(exponent, MANTISSA, out=mantissa)
    np.bitwise_or(mantissa, ONE_HALF, out=mantissa)
    np.subtract(exponent, mantissa, out=exponent)
    np.right_shift(exponent, 23, out=exponent)
    np.subtract(excess, np.float32(1), out=excess)  # u = 2^exponent (1 + excess)
    select(mantissa, signed.view(np.int32), upper)
    np.invert(upper, out=upper)
    np.bitwise_and(exponent, upper, out=exponent)
    return _root(excess, exponent, space)


def _root(excess: Floats, exponent: Ints, space: Floats) -> Floats:
    """sqrt(-2 log(2^exponent (1 + excess))), for excess in [-1/2, 0)."""
    ratio: Floats = space[0]
    total: Floats = space[1]
    np.add(excess, np.float32(2), out=ratio)
    np.divide(excess, ratio, out=ratio)
    np.multiply(ratio, ratio, out=excess)
    series(LOG_SERIES, excess, total)
    np.multiply(total, ratio, out=total)
    np.copyto(ratio, exponent)
    np.multiply(ratio, np.float32(-2 * math.log(2)), out=ratio)
    np.add(total, ratio, out=total)
    np.sqrt(total, out=total)
    return total


def directions(bits: Ints, space: Floats) -> tuple[Floats, Floats]:
    """The coordinates of uniform points on the unit circle: 30 bits are the angle to an axis, two
    select the axis. ``space`` is as in :func:`radii`.
    """
    angle, square, across, along = space
    shifted = square.view(np.int32)
    np.right_shift(bits, 2, out=shifted)
    np.copyto(angle, shifted)
    np.add(angle, np.float32(0.5), out=angle)
    np.multiply(angle, np.float32(math.pi / 2**31), out=angle)
    np.multiply(angle, angle, out=square)
    series(COS_SERIES, square, along)
    series(SIN_SERIES, square, across)
    np.multiply(across, angle, out=across)
    sign = swap = angle.view(np.int32)
    np.left_shift(bits, 31, out=sign)
    np.bitwise_xor(along.view(np.int32), sign, out=along.view(np.int32))
    np.left_shift(bits, 30, out=swap)
    np.right_shift(swap, 31, out=swap)
    swap_where(swap, along.view(np.int32), across.view(np.int32), square.view(np.int32))
    return along, across


def swap_where(mask: Ints, first: Ints, second: Ints, change: Ints) -> None:
    """Exchange the bits of two arrays where ``mask`` is -1; ``change`` is overwritten."""
    np.bitwise_xor(first, second, out=change)
    np.bitwise_and(change, mask, out=change)
    np.bitwise_xor(first, change, out=first)
    np.bitwise_xor(second, change, out=second)


def select(bits: Ints, others: Ints, mask: Ints) -> None:
    """Put ``others``, which is overwritten, into ``bits`` where ``mask`` is -1."""
    np.bitwise_xor(others, bits, out=others)
    np.bitwise_and(others, mask, out=others)
    np.bitwise_xor(bits, others, out=bits)


def series(coefficients: tuple[float, ...], values: Floats, out: Floats) -> None:
    """The polynomial with those coefficients, lowest first, in separate calls."""
    np.multiply(values, np.float32(coefficients[-1]), out=out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, np.float32(coefficient), out=out)
        np.multiply(out, values, out=out)
    np.add(out, np.float32(coefficients[0]), out=out)


# --- the whole table and its digest


def generate_table(seed: int, size: int, put: Callable[[int, Floats], object]) -> str:
    """Call ``put(start, piece)`` with every chunk of a table, from all cores and in any order;
    returns the table's digest.
    """

    idle: list[ChunkGenerator] = []  # fresh memory for each batch would cost a tenth of its time

    def pieces(numbers: range) -> Iterator[Floats]:
        generator = idle.pop() if idle else ChunkGenerator(seed)
        for number in numbers:
            normals = generator.chunk(number)[: size - number * CHUNK]
            put(number * CHUNK, normals)
            yield normals
        idle.append(generator)

    return _digest(size, pieces)


def runs(seed: int, starts: Integers) -> Floats:
    """Single runs of a seed's table, float32[K, RUN]; ``starts`` int64[K], multiples of RUN."""
    half = CHUNK // 2
    bits = np.empty((2, len(starts), RUN), dtype=np.int32)  # of the radii, of the angles
    stream, at = np.random.Philox(key=np.array([seed, DOMAIN], dtype=np.uint64), counter=0), 0
    for row, start in enumerate(starts.tolist()):
        for part in range(2):  # a Philox block is four words, a word two integers
            first = (start // CHUNK << 128) + (part * half + start % half) // 8
            stream.advance(first - at)  # faster than a new stream
            bits[part, row] = stream.random_raw(RUN // 2).astype("<u8", copy=False).view("<i4")
            at = first + RUN // 8
    space = np.empty((4, bits[0].size), dtype=np.float32)
    radius = radii(bits[0].reshape(-1), space).copy()
    along, across = directions(bits[1].reshape(-1), space)
    is_second = np.repeat(starts % CHUNK >= half, RUN)
    made: Floats = radius * np.where(is_second, across, along)
    return made.reshape(-1, RUN)


def keyed_normals(key: int, stream: int, count: int) -> Floats:
    """float32[count]: the first normals of a stream; each depends only on its place, the key and
    the stream, both below 2^64. Word k of the stream makes the normals 2k and 2k + 1.
    """
    made = np.empty(count + count % 2, np.float32)
    generator = np.random.Philox(key=np.array([key, stream], dtype=np.uint64), counter=0)
    space = np.empty((4, min(len(made), PIECE) // 2), np.float32)
    for start in range(0, len(made), PIECE):
        piece = made[start : start + PIECE]
        words = generator.random_raw(len(piece) // 2).astype("<u8", copy=False)
        bits = np.ascontiguousarray(words.view("<i4").reshape(-1, 2).T)
        room = space[:, : len(words)]
        radius = radii(bits[0], room).copy()
        along, across = directions(bits[1], room)
        np.multiply(radius, along, out=piece[::2])
        np.multiply(radius, across, out=piece[1::2])
    return made[:count]


def table_digest(values: Floats) -> str:
    """BLAKE2b-128 over the checksums of the table's chunks."""

    def pieces(numbers: range) -> Iterator[Floats]:
        return (values[number * CHUNK : (number + 1) * CHUNK] for number in numbers)

    return _digest(len(values), pieces)


def _digest(size: int, pieces: Callable[[range], Iterator[Floats]]) -> str:
    count = -(-size // CHUNK)
    sums = np.empty((count, 2), dtype="<u8")

    def work(first: int) -> None:
        numbers, space = range(first, min(first + BATCH, count)), np.empty(CHUNK // 2, dtype="<u8")
        for number, piece in zip(numbers, pieces(numbers), strict=True):
            sums[number] = checksums(piece, space)

    arrays.for_each(work, range(0, count, BATCH), min(arrays.usable_cores(), -(-count // BATCH)))
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=DIGEST_BYTES)
    digest.update(sums.data)
    return digest.hexdigest()


def checksums(piece: Floats, space: Words) -> tuple[int, int]:
    """Two sums of the 64-bit words of up to a chunk of floats, modulo 2^64: plain, and with random
    weights, which detects order, and differences that cancel. ``space`` is overwritten.
    """
    if len(piece) < CHUNK:
        piece = np.concatenate([piece, np.zeros(CHUNK - len(piece), dtype="<f4")])
    words = piece.view("<u8")
    # else two changes of a highest bit cancel under all odd weights
    np.right_shift(words, np.uint64(29), out=space)
    np.bitwise_xor(words, space, out=space)
    np.multiply(space, _weights(), out=space)
    return int(np.add.reduce(words)), int(np.add.reduce(space))


@cache
def _weights() -> Words:
    """Odd numbers without a pattern, one per word of a chunk."""
    return np.random.Philox(key=DOMAIN).random_raw(CHUNK // 2) | np.uint64(1)
