"""Checks that the records of a batch are as many as it says and fill it exactly, without reading them.

A record begins with its length, so one step leads to the next. In Python a step costs about 0.1 µs, as much
as all other handling of a 100-byte record. But neighbours often have equal lengths: then the length bytes of
a whole run lie at regular distances, and one strided comparison covers the run, some 9 ns a record.
"""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

# attributes, timestamp delta, offset delta, key length, value length, header count: a byte each at least
SMALLEST_RECORD_BYTES = 6
_MAX_LENGTH_BYTES = 5
_COPY_BELOW_BYTES = 512  # with records smaller than this, a copy as bytes, which are read faster, pays
_FIRST_WINDOW = 64
_SMALLEST_WINDOW = 8
_WINDOW_GROWTH = 4
_FIRST_STEPS = 16

# The length is a zigzag integer of variable length: an even first byte for a positive one, seven bits a byte.
# _LOW is the step by its first byte (length bytes included), _HIGH what a second byte adds. Whatever needs a
# closer look (negative, tiny, over-long or three-byte lengths) leads so far that no walk can end well.
_FAR = 1 << 40
_LOW = [_FAR] * 256
_HIGH = [_FAR] * 256
for _byte in range(0, 256, 2):
    if _byte >= 0x80:
        _LOW[_byte] = 2 + ((_byte & 0x7F) >> 1)
    elif _byte >> 1 >= SMALLEST_RECORD_BYTES:
        _LOW[_byte] = 1 + (_byte >> 1)
for _byte in range(1, 0x80):
    _HIGH[_byte] = _byte << 6


def fault_in_records(records: Buffer, count: int) -> str | None:
    """What is wrong with `records`, said to be `count` and nothing else; None if nothing is."""
    if count > len(records):
        return f"{count} records cannot lie in {len(records)} bytes"
    data = bytes(records) if len(records) < count * _COPY_BELOW_BYTES else records
    try:
        if _quick_walk(data, count) == len(data):
            return None
    except IndexError:
        pass  # the careful walk finds out whether anything is wrong, and what
    return _careful_walk(data, count)


def _quick_walk(data: Buffer, count: int) -> int:
    """The position after `count` records; beyond the end, or an IndexError, if a length is not ordinary."""
    low, high = _LOW, _HIGH
    position = 0
    size = len(data)
    steps = _FIRST_STEPS
    while count:
        if count <= _SMALLEST_WINDOW:
            return _step_over(data, position, count)
        first = data[position]
        step = low[first] if first < 0x80 else low[first] + high[data[position + 1]]
        before = count
        window = min(count, _FIRST_WINDOW, (size - position) // step)
        while window > _SMALLEST_WINDOW and _same_lengths(data, position, step, window):
            position += step * window
            count -= window
            window = min(count, window * _WINDOW_GROWTH, (size - position) // step)
        if count != before:
            steps = _FIRST_STEPS
            continue
        # Lengths vary here: go record by record, further each time before trying again.
        count -= min(steps, count)
        position = _step_over(data, position, before - count)
        steps *= 2
    return position


def _step_over(data: Buffer, position: int, count: int) -> int:
    low, high = _LOW, _HIGH
    for _ in range(count):
        first = data[position]
        if first < 0x80:
            position += low[first]
        else:
            position += low[first] + high[data[position + 1]]
    return position


def _same_lengths(data: Buffer, position: int, step: int, window: int) -> bool:
    """Whether `window` records, `step` bytes apart, all begin with the same length."""
    end = position + step * window
    first = data[position]
    if bytes(data[position:end:step]).count(first) != window:
        return False
    return first < 0x80 or bytes(data[position + 1 : end : step]).count(data[position + 1]) == window


def _careful_walk(data: Buffer, count: int) -> str | None:
    position = 0
    size = len(data)
    for index in range(count):
        length = shift = 0
        for _ in range(_MAX_LENGTH_BYTES):
            if position >= size:
                return f"the batch ends before record {index} of {count}"
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            return f"the length of record {index} has too many bytes"
        if length & 1 or length >> 1 < SMALLEST_RECORD_BYTES:
            return f"record {index} has a length of {(length >> 1) ^ -(length & 1)} bytes"
        position += length >> 1
        if position > size:
            return f"record {index} of {count} ends {position - size} bytes beyond its batch"
    if position != size:
        return f"{size - position} bytes follow the last of {count} records"
    return None
