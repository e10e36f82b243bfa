"""Decompresses a small zstd frame, which the standard library cannot before Python 3.14. (pure)

It serves for a database's manifest and nodes of some kilobytes, so it is short and not fast. A bit stream is
one large number that is read from its top (blocks) or its bottom (tables of probabilities); missing bits are
zero. A frame that it does not understand, or that needs a dictionary, is a ValueError; the checksum of a
frame is not computed.

Source: RFC 8878, whose sections are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

MAGIC = b"\x28\xb5\x2f\xfd"
OUT_BYTES_MAX = 1 << 20
BLOCK_BYTES_MAX = 1 << 17
RAW, RLE, COMPRESSED, REPEAT = range(4)  # of blocks and literals; PREDEFINED stands for RAW in tables
HUFFMAN_BITS_MAX, WEIGHTS_LOG_MAX, LOG_MAX = 11, 6, 9

# 3.1.1.3.2.1.1: codes of lengths, each with the least value and the bits that are added to it.
LITERAL_BASES = (*range(16), 16, 18, 20, 22, 24, 28, 32, 40, 48, *(1 << power for power in range(6, 17)))
LITERAL_BITS = (*[0] * 16, 1, 1, 1, 1, 2, 2, 3, 3, 4, *range(6, 17))
MATCH_BASES = (
    *range(3, 35), 35, 37, 39, 41, 43, 47, 51, 59, 67, 83, 99, *((1 << power) + 3 for power in range(7, 17)),
)  # fmt: skip
MATCH_BITS = (*[0] * 32, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, *range(7, 17))
# 3.1.1.3.2.2: the predefined distributions.
LITERALS = (4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, *[1] * 5, *[-1] * 4)
OFFSETS = (*[1] * 6, 2, 2, 2, *[1] * 15, *[-1] * 5)
MATCHES = (1, 4, 3, *[2] * 6, *[1] * 37, *[-1] * 7)


class Table(NamedTuple):
    """A state machine of 4.1: for each state its symbol, the bits to read, and what they are added to."""

    log: int
    symbols: Sequence[int]
    bits: Sequence[int]
    bases: Sequence[int]


class Huffman(NamedTuple):
    """A tree of 4.2 as a table: for the next `log` bits the symbol, and how many of them are its own."""

    log: int
    symbols: Sequence[int]
    bits: Sequence[int]


class Kept:
    """What blocks of a frame leave to the next: the output, offsets, and the tables."""

    __slots__ = ("huffman", "offsets", "out", "tables")

    def __init__(self) -> None:
        self.out = bytearray()
        self.offsets = [1, 4, 8]
        self.tables: list[Optional[Table]] = [None, None, None]
        self.huffman: Optional[Huffman] = None


class Bits:
    """A stream that is read backwards (4.1): the highest bit says where it begins."""

    __slots__ = ("left", "number")

    def __init__(self, text: bytes) -> None:
        self.number = int.from_bytes(text, "little")
        self.left = self.number.bit_length() - 1
        if not text or not text[-1]:
            raise ValueError("a stream without its first bit")

    def peek(self, count: int) -> int:
        """The next bits; zeros where there are no more."""
        at = self.left - count
        mask = (1 << count) - 1
        return (self.number >> at if at >= 0 else self.number << -at) & mask

    def take(self, count: int) -> int:
        """The next bits, read."""
        value = self.peek(count)
        self.left -= count
        return value


def decompress(frame: bytes) -> bytes:
    """The content of the frame that stands at the beginning. Raises ValueError."""
    kept = Kept()
    try:
        at = _header_bytes(frame)
        last = 0
        while not last:
            if len(frame) < at + 3:
                raise ValueError("a frame that is cut")
            header = int.from_bytes(frame[at : at + 3], "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            at += 3
            if kind == RLE and size <= BLOCK_BYTES_MAX:
                kept.out += frame[at : at + 1] * size
                at += 1
                continue
            block = frame[at : at + size]
            if len(block) < size or kind in (RLE, REPEAT) or size > BLOCK_BYTES_MAX:
                raise ValueError("a block that is cut")
            at += size
            if kind == RAW:
                kept.out += block
            else:
                _block(block, kept)
            if len(kept.out) > OUT_BYTES_MAX:
                raise ValueError("too large")
    except (IndexError, OverflowError) as error:
        raise ValueError(f"not understood: {error}") from None
    return bytes(kept.out)


def _header_bytes(frame: bytes) -> int:
    """3.1.1.1"""
    if frame[:4] != MAGIC or frame[4] & 8:
        raise ValueError("no zstd frame")
    flags = frame[4]
    single = flags >> 5 & 1
    if flags & 3:
        raise ValueError("it asks for a dictionary")
    return 5 + (1 - single) + ((1 if single else 0), 2, 4, 8)[flags >> 6]


def _block(block: bytes, kept: Kept) -> None:
    literals, at = _literals(block, kept)
    count, at = _count(block, at)
    if not count:
        kept.out += literals
        return
    modes = block[at]
    at += 1
    defaults = ((LITERALS, 6), (OFFSETS, 5), (MATCHES, 6))
    for place, (distribution, log) in enumerate(defaults):
        mode = modes >> (6 - 2 * place) & 3
        if mode == RAW:
            kept.tables[place] = _table(distribution, log)
        elif mode == RLE:
            kept.tables[place] = Table(0, [block[at]], [0], [0])
            at += 1
        elif mode == COMPRESSED:
            told, own_log, size = _distribution(block[at:])
            kept.tables[place] = _table(told, own_log)
            at += size
    _sequences(Bits(block[at:]), count, literals, kept)


def _count(block: bytes, at: int) -> tuple[int, int]:
    """3.1.1.3.2.1: how many sequences there are, and where their modes stand."""
    first = block[at]
    if first < 128:
        return first, at + 1
    if first < 255:
        return ((first - 128) << 8) + block[at + 1], at + 2
    return block[at + 1] + (block[at + 2] << 8) + 0x7F00, at + 3


def _literals(block: bytes, kept: Kept) -> tuple[bytes, int]:
    """3.1.1.3.1: the literals, and where they end."""
    kind, form = block[0] & 3, block[0] >> 2 & 3
    if kind in (RAW, RLE):
        size = (1, 2, 1, 3)[form]
        regenerated = int.from_bytes(block[:size], "little") >> (3 if size == 1 else 4)
        if kind == RLE:
            return block[size : size + 1] * regenerated, size + 1
        return block[size : size + regenerated], size + regenerated
    size, width = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
    header = int.from_bytes(block[:size], "little") >> 4
    regenerated, packed = header & ((1 << width) - 1), header >> width
    text = block[size : size + packed]
    if kind == COMPRESSED:
        kept.huffman, begin = _huffman(text)
        text = text[begin:]
    if kept.huffman is None:
        raise ValueError("literals without a tree")
    if not form:
        return _decoded(text, regenerated, kept.huffman), size + packed
    ends = [6]
    for place in (0, 2, 4):
        ends.append(ends[-1] + int.from_bytes(text[place : place + 2], "little"))
    ends.append(len(text))
    each = (regenerated + 3) // 4
    counts = (each, each, each, regenerated - 3 * each)
    streams = [text[begin:end] for begin, end in zip(ends, ends[1:])]
    return b"".join(_decoded(*one, kept.huffman) for one in zip(streams, counts)), size + packed


def _decoded(stream: bytes, count: int, tree: Huffman) -> bytes:
    bits = Bits(stream)
    out = bytearray()
    for _ in range(count):
        place = bits.peek(tree.log)
        out.append(tree.symbols[place])
        bits.left -= tree.bits[place]
    if bits.left:
        raise ValueError("a stream of literals does not end with them")
    return bytes(out)


def _huffman(text: bytes) -> tuple[Huffman, int]:
    """4.2.1: the tree by the weights of its symbols, and how many bytes told it."""
    first = text[0]
    if first >= 128:
        count = first - 127
        size = 1 + (count + 1) // 2
        weights = [(text[1 + place // 2] >> (0 if place % 2 else 4)) & 15 for place in range(count)]
    else:
        size = 1 + first
        weights = _weights(text[1:size])
    total = sum(1 << (weight - 1) for weight in weights if weight)
    log = total.bit_length()
    rest = (1 << log) - total
    if not total or rest & (rest - 1) or log > HUFFMAN_BITS_MAX:
        raise ValueError("weights of no tree")
    weights.append(rest.bit_length())
    symbols: list[int] = []
    bits: list[int] = []
    for weight in range(1, log + 1):
        for symbol, own in enumerate(weights):
            if own == weight:
                symbols += [symbol] * (1 << (weight - 1))
                bits += [log + 1 - weight] * (1 << (weight - 1))
    return Huffman(log, symbols, bits), size


def _weights(text: bytes) -> list[int]:
    """4.2.1.2: weights by two states that take turns."""
    told, log, size = _distribution(text)
    if log > WEIGHTS_LOG_MAX:
        raise ValueError("weights of no tree")
    table = _table(told, log)
    bits = Bits(text[size:])
    states = [bits.take(log), bits.take(log)]
    weights: list[int] = []
    turn = 0
    while len(weights) < 255:
        weights.append(table.symbols[states[turn]])
        states[turn] = table.bases[states[turn]] + bits.take(table.bits[states[turn]])
        turn = 1 - turn
        if bits.left < 0:
            weights.append(table.symbols[states[turn]])
            return weights
    raise ValueError("too many weights")


def _distribution(text: bytes) -> tuple[list[int], int, int]:
    """4.1.1: probabilities, their sum's logarithm, and how many bytes told them."""
    number = int.from_bytes(text[:512], "little")
    log, at = (number & 15) + 5, 4
    if log > LOG_MAX:
        raise ValueError("no distribution")
    left = 1 << log
    told: list[int] = []
    while left > 0 and len(told) < 256:
        width = (left + 1).bit_length()
        value = number >> at & ((1 << width) - 1)
        lower = (1 << (width - 1)) - 1
        threshold = (1 << width) - 1 - (left + 1)
        at += width
        if value & lower < threshold:
            at -= 1
            value &= lower
        elif value > lower:
            value -= threshold
        told.append(value - 1)
        left -= abs(value - 1)
        while value == 1:  # none: two bits say how many more have none, and 3 that two bits follow
            more = number >> at & 3
            at += 2
            told += [0] * more
            if more < 3:
                break
    if left or len(told) > 256:
        raise ValueError("no distribution")
    return told, log, (at + 7) // 8


def _table(told: Sequence[int], log: int) -> Table:
    """4.1.1: the states of a distribution."""
    size = 1 << log
    symbols = [0] * size
    high = size
    for symbol, probability in enumerate(told):
        if probability == -1:
            high -= 1
            symbols[high] = symbol
    step, at = (size >> 1) + (size >> 3) + 3, 0
    for symbol, probability in enumerate(told):
        for _ in range(max(0, probability)):
            symbols[at] = symbol
            at = (at + step) & (size - 1)
            while at >= high:
                at = (at + step) & (size - 1)
    counts = [abs(probability) for probability in told]
    bits, bases = [], []
    for symbol in symbols:
        count = counts[symbol]
        counts[symbol] += 1
        bits.append(log + 1 - count.bit_length())
        bases.append((count << bits[-1]) - size)
    return Table(log, symbols, bits, bases)


def _sequences(bits: Bits, count: int, literals: bytes, kept: Kept) -> None:
    """3.1.1.4: copies of literals and of what was written before."""
    lengths, offsets, matches = (table for table in kept.tables if table is not None)
    states = [bits.take(table.log) for table in (lengths, offsets, matches)]
    out, used = kept.out, 0
    for place in range(count):
        code = offsets.symbols[states[1]]
        value = (1 << code) + bits.take(code)
        match = matches.symbols[states[2]]
        length = MATCH_BASES[match] + bits.take(MATCH_BITS[match])
        literal = lengths.symbols[states[0]]
        copied = LITERAL_BASES[literal] + bits.take(LITERAL_BITS[literal])
        if place < count - 1:
            for index, table in ((0, lengths), (2, matches), (1, offsets)):
                states[index] = table.bases[states[index]] + bits.take(table.bits[states[index]])
        offset = _offset(value, copied, kept.offsets)
        out += literals[used : used + copied]
        used += copied
        if not 0 < offset <= len(out) or len(out) + length > OUT_BYTES_MAX:
            raise ValueError("a copy of nothing")
        for _ in range(length):
            out.append(out[-offset])
    if bits.left:
        raise ValueError("the sequences do not end with their stream")
    out += literals[used:]


def _offset(value: int, copied: int, recent: list[int]) -> int:
    """3.1.1.5: new offsets, or one of the last three."""
    if value > 3:
        recent[:] = [value - 3, recent[0], recent[1]]
        return recent[0]
    place = value - 1 + (copied == 0)
    offset = recent[place] if place < 3 else recent[0] - 1
    if place:
        recent[:] = [offset, recent[0], recent[2] if place == 1 else recent[1]]
    return offset
