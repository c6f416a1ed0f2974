"""Arrow columns as the bytes of PostgreSQL's binary COPY, made for a whole record batch at a time.

A row is the number of its fields, and for each field its length and its value; a length of -1 is NULL. What
has a fixed width is laid out by numpy, what has not is joined by Arrow: nothing is done per value in Python.
Measured against COPY of CSV: a tenth of the worker's processor time, a third of the server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

# How PostgreSQL sends them: big-endian, and times from 2000 on.
_WIDTHS = {
    "bool": "u1",
    "int2": ">i2",
    "int4": ">i4",
    "int8": ">i8",
    "float4": ">f4",
    "float8": ">f8",
    "date": ">i4",
    "timestamp": ">i8",
    "timestamptz": ">i8",
}
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_NULL = b"\xff\xff\xff\xff"
_JSONB_VERSION = b"\x01"
_NEGATIVE = 0x4000
# Arrow counts the bytes of a joined batch in 31 bits.
_BYTES_AT_ONCE = 256 * 1024 * 1024


def encoded(batch: pa.RecordBatch, types: Sequence[str]) -> Iterator[pa.Buffer]:
    """The batch's rows; column by column of these PostgreSQL types."""
    if batch.nbytes > _BYTES_AT_ONCE and len(batch) > 1:
        half = len(batch) // 2
        yield from encoded(batch.slice(0, half), types)
        yield from encoded(batch.slice(half), types)
    elif len(batch):
        rows = _Rows(len(batch))
        rows.add_fixed(">i2", len(types))
        for column, kind in zip(batch.columns, types, strict=True):
            _add(rows, column, kind)
        yield rows.joined()


class _Rows:
    """Pieces of each row, from left to right. Neighbours of fixed width become one piece."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._fixed: list[tuple[str, Any]] = []
        self._pieces: list[pa.Array] = []

    def add_fixed(self, width: str, values: Any) -> None:
        """Of the same width in every row: an array, or one value for all."""
        self._fixed.append((width, values))

    def add(self, values: pa.Array) -> None:
        """Bytes, without nulls."""
        self._flush()
        self._pieces.append(values)

    def joined(self) -> pa.Buffer:
        self._flush()
        rows = pc.binary_join_element_wise(*self._pieces, b"")
        end = np.frombuffer(rows.buffers()[1], dtype=np.int32)[self._count]
        return rows.buffers()[2].slice(0, int(end))

    def _flush(self) -> None:
        if self._fixed:
            self._pieces.append(_packed(self._fixed, self._count))
            self._fixed = []


def _packed(fields: Sequence[tuple[str, Any]], count: int) -> pa.Array:
    """Fields of fixed width side by side, as one array of bytes."""
    rows = np.empty(count, dtype=[(str(index), width) for index, (width, _) in enumerate(fields)])
    for index, (_, values) in enumerate(fields):
        rows[str(index)] = values
    ends = np.arange(count + 1, dtype=np.int32) * rows.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(rows)])


def _add(rows: _Rows, column: pa.Array, kind: str) -> None:
    if kind == "numeric":
        _add_fields(rows, column, _numeric_fields(column))
    elif (width := _WIDTHS.get(kind)) is not None:
        size = np.dtype(width).itemsize
        _add_fields(rows, column, [(">i4", size), (width, _plain_numbers(column, kind))])
    else:
        _add_bytes(rows, column, kind)


def _add_fields(rows: _Rows, column: pa.Array, fields: Sequence[tuple[str, Any]]) -> None:
    """A length and a value of fixed width; of a NULL the length alone."""
    if column.null_count == 0:
        for width, values in fields:
            rows.add_fixed(width, values)
    else:
        rows.add(pc.if_else(column.is_valid(), _packed(fields, len(column)), _NULL))


def _add_bytes(rows: _Rows, column: pa.Array, kind: str) -> None:
    values = column.cast(pa.binary())
    if kind == "jsonb":
        values = pc.binary_join_element_wise(_JSONB_VERSION, values, b"")
    rows.add_fixed(">i4", pc.fill_null(pc.binary_length(values), -1).to_numpy())
    rows.add(pc.fill_null(values, b""))


def _plain_numbers(column: pa.Array, kind: str) -> Any:
    if kind == "bool":
        column = column.cast(pa.uint8())
    elif kind == "date":
        column = column.cast(pa.int32())
    elif kind in {"timestamp", "timestamptz"}:
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if kind == "date":
        return numbers - _DAYS_TO_2000
    return numbers - _MICROSECONDS_TO_2000 if kind.startswith("timestamp") else numbers


def _numeric_fields(column: pa.Array) -> list[tuple[str, Any]]:
    """A numeric: groups of four decimal digits, the point between two of them; leading zeros are allowed."""
    scale = column.type.scale
    groups, fractional = _digit_groups(column)
    negative = pc.fill_null(pc.less(column, pa.scalar(Decimal(0), column.type)), fill_value=False)
    signs = np.where(negative.to_numpy(zero_copy_only=False), _NEGATIVE, 0)
    header = [
        (">i4", 8 + 2 * len(groups)),
        (">i2", len(groups)),
        (">i2", len(groups) - fractional - 1),
        (">i2", signs),
        (">i2", scale),
    ]
    return [*header, *((">i2", group) for group in groups)]


def _digit_groups(column: pa.Array) -> tuple[list[Any], int]:
    """The digits in base 10,000, the highest group first, and how many groups are behind the point."""
    precision, scale = column.type.precision, column.type.scale
    limbs = _limbs(pc.abs(pc.fill_null(column, pa.scalar(Decimal(0), column.type))), precision)
    last_digits = scale % 4
    fractional = -(-scale // 4)
    count = fractional + max(1, -(-(precision - scale) // 4))
    groups = []
    for position in range(count):
        base = 10**last_digits if position == 0 and last_digits else 10_000
        limbs, digits = _divided(limbs, base)
        groups.append(digits * (10_000 // base))
    return groups[::-1], fractional


def _limbs(column: pa.Array, precision: int) -> list[Any]:
    """Unscaled values of a decimal128 in as many numbers of 32 bits as it needs, the highest first."""
    words = np.frombuffer(column.buffers()[1], dtype="<u4").reshape(-1, 4)
    words = words[column.offset : column.offset + len(column)]
    needed = 1 if precision <= 9 else 2 if precision <= 19 else 4
    return [words[:, index].astype(np.uint64) for index in reversed(range(needed))]


def _divided(limbs: list[Any], base: int) -> tuple[list[Any], Any]:
    """Long division by a small number: quotient and remainder."""
    divisor, shift = np.uint64(base), np.uint64(32)
    quotient, rest = [], np.zeros_like(limbs[0])
    for limb in limbs:
        value = (rest << shift) | limb
        quotient.append(value // divisor)
        rest = value % divisor
    return quotient, rest
