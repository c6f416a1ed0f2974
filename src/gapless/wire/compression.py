"""The compression codecs of record batches, with a bound on what opening may cost.

`decompress` never makes more than `max_bytes` of output, whatever the input claims: more is `OutputTooLarge`,
anything else that is wrong with the input `NotDecompressible`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any

import cramjam

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The numbers in a batch's attributes; 5 to 7 are not in use."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class NotDecompressible(Exception):
    """The input is not what its codec makes."""


class OutputTooLarge(Exception):
    """The input would decompress to more than the bound."""


# Java clients write snappy in the framing of snappy-java, librdkafka one bare block.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_BYTES = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")

# Java clients and brokers read only frames whose blocks do not refer to each other; cramjam makes others. So
# frames are put together here: independent blocks of at most 64 KB, no sizes, no checksums (a batch has one).
_LZ4_FRAME_HEADER = bytes.fromhex("04224d18 60 40 82")
_LZ4_END_MARK = b"\x00\x00\x00\x00"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_BLOCK_LENGTH = Struct("<I")
_LZ4_NOT_COMPRESSED = 0x80000000

_SMALLEST_OUTPUT_BYTES = 64 * 1024
_USUAL_RATIO = 8
_OUTPUT_GROWTH = 4
_OUTPUT_FULL = "failed to write whole buffer"  # how cramjam words it; there is no exception of its own


def compress(codec: int, data: Buffer) -> bytes:
    """Compress the records of one batch."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == Compression.SNAPPY:
        return _compress_xerial(data)
    if codec == Compression.LZ4:
        return _compress_lz4(data)
    if codec == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"there is no compression {codec}")


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Open the records of one batch."""
    try:
        if codec == Compression.NONE:
            return data
        if codec == Compression.GZIP:
            return _decompress_into(cramjam.gzip.decompress_into, data, max_bytes)
        if codec == Compression.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        if codec == Compression.LZ4:
            return _decompress_into(cramjam.lz4.decompress_into, data, max_bytes)
        if codec == Compression.ZSTD:
            return _decompress_into(cramjam.zstd.decompress_into, data, max_bytes)
    except cramjam.DecompressionError as error:
        raise NotDecompressible(str(error)) from None
    raise NotDecompressible(f"there is no compression {codec}")


def _decompress_into(decode: Callable[[Any, Any], int], data: Buffer, max_bytes: int) -> memoryview:
    """Decode into a buffer of the usual size, and into a larger one for as long as it does not fit."""
    output_bytes = min(max_bytes, max(_SMALLEST_OUTPUT_BYTES, len(data) * _USUAL_RATIO))
    while True:
        output = bytearray(output_bytes)
        try:
            return memoryview(output)[: decode(data, output)]
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise
        if output_bytes == max_bytes:
            raise OutputTooLarge(f"more than {max_bytes} bytes")
        output_bytes = min(max_bytes, output_bytes * _OUTPUT_GROWTH)


def _compress_lz4(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [_LZ4_FRAME_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        compressed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(compressed) < len(block):
            parts += (_LZ4_BLOCK_LENGTH.pack(len(compressed)), compressed)
        else:
            parts += (_LZ4_BLOCK_LENGTH.pack(len(block) | _LZ4_NOT_COMPRESSED), block)
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view, max_bytes)
    blocks = []
    position = _XERIAL_HEADER_BYTES
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise NotDecompressible("a snappy block ends within its length")
        length: int = _BLOCK_LENGTH.unpack_from(view, position)[0]
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise NotDecompressible(f"a snappy block claims {length} bytes")
        block = _snappy_block(view[position : position + length], max_bytes)
        max_bytes -= len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    claimed_bytes = cramjam.snappy.decompress_raw_len(block)
    if claimed_bytes > max_bytes:
        raise OutputTooLarge(f"{claimed_bytes} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))
