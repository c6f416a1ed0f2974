"""Reading a segment from its beginning: block after block, and what it is that comes after the last good one.

A segment that is not the last is valid up to the first position of the next one. What lies behind that was
never stored: a write that failed, after which the spool went on in a new segment. In the last one all is
valid up to the first block that is not; if a good block comes after that, the bytes between were damaged,
since each block was durable before the next was written. Zeros at its end wait to be written over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from gapless.client.spool import blocks
from gapless.client.spool.blocks import BlockHeader, Columns, Stream
from gapless.client.spool.errors import SpoolDamaged, SpoolOfAnother
from gapless.client.spool.records import Spooled

SUFFIX = ".segment"
_MAX_CANDIDATES = 1000


def segment_name(first: int) -> str:
    return f"{first:020d}{SUFFIX}"


def list_segments(folder: Path) -> list[tuple[int, Path]]:
    """(first position, path), in order."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        if not (path.stem.isdecimal() and len(path.stem) == 20):
            raise SpoolDamaged(f"{path}: no spool gave a segment this name; move it elsewhere")
        found.append((int(path.stem), path))
    return sorted(found)


class Block(NamedTuple):
    """One good block."""

    at: int
    header: BlockHeader
    body: bytes
    columns: Columns

    @property
    def end_at(self) -> int:
        return self.at + blocks.BLOCK_HEADER.size + self.header.length


@dataclass(slots=True)
class Scan:
    """Walks through one segment. After the last block, `at` and `position` tell where the good part ends."""

    path: Path
    first: int
    incarnation: bytes
    fd: int = -1
    at: int = 0
    position: int = 0
    streams: dict[int, Stream] = field(default_factory=dict)
    _seed: int = 0

    def open(self) -> Self:
        """Check what a segment begins with: that part was durable before the file got its name."""
        self.fd = os.open(self.path, os.O_RDONLY)
        try:
            self._check_beginning()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self.open() if self.fd < 0 else self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_beginning(self) -> None:
        start = os.pread(self.fd, blocks.FILE_HEADER.size, 0)
        if len(start) < blocks.FILE_HEADER.size:
            raise self.damaged(0, "the file is shorter than its header")
        magic, version, incarnation = blocks.FILE_HEADER.unpack(start)
        if magic != blocks.FILE_MAGIC:
            raise self.damaged(0, "this is no segment of a spool")
        if version != blocks.VERSION:
            raise SpoolOfAnother(
                f"{self.path} has version {version}; this Gapless reads version {blocks.VERSION}"
            )
        if incarnation != self.incarnation:
            raise SpoolOfAnother(f"{self.path} comes from another spool: move it back there")
        self._seed = blocks.seed_of(self.incarnation)
        self.at = blocks.FILE_HEADER.size
        self.position = self.first
        head = self.next_block()
        if head is None or head.header.count:
            raise self.damaged(
                blocks.FILE_HEADER.size, "the list of streams at its beginning is not readable"
            )

    def damaged(self, at: int, what: str) -> SpoolDamaged:
        return SpoolDamaged(
            f"{self.path} is damaged at byte {at}: {what}; nothing was changed, so restore the file, or move"
            " the folder away and let a new one begin"
        )

    def check_end(self, stored_at_least: int) -> None:
        """Whether the last segment's good part has all that was surely stored."""
        if self.position < stored_at_least:
            raise self.damaged(
                self.at,
                f"it ends there with position {self.position}, but {stored_at_least} records were stored,"
                " here or in a segment that is missing",
            )

    def next_block(self) -> Block | None:
        """The next good one, which must begin where the last one ended; None if what comes is none."""
        start = os.pread(self.fd, blocks.BLOCK_HEADER.size, self.at)
        header = blocks.decode_header(start)
        if header is None or header.first != self.position:
            return None
        body_at = self.at + blocks.BLOCK_HEADER.size
        if body_at + header.length > os.fstat(self.fd).st_size:
            return None
        body = os.pread(self.fd, header.length, body_at)
        if not blocks.is_intact(self._seed, header, body):
            return None
        try:
            columns = blocks.decode_columns(header, body)
        except ValueError as error:
            raise self.damaged(self.at, str(error)) from error
        block = Block(self.at, header, body, columns)
        for stream in columns.declared:
            self.streams[stream.id] = stream
        self.at = block.end_at
        self.position = header.end
        return block

    def blocks(self, end: int | None = None) -> Iterator[Block]:
        """All good ones, up to a position."""
        while end is None or self.position < end:
            block = self.next_block()
            if block is None:
                return
            yield block

    def records(self, block: Block) -> list[Spooled]:
        try:
            return blocks.decode_records(block.header, block.body, block.columns, self.streams)
        except (ValueError, KeyError) as error:
            raise self.damaged(block.at, str(error)) from error

    def count_sequences(self, block: Block, records: int | None = None) -> None:
        """Move the streams' next sequences over a block's records, or over the first ones of them."""
        columns = block.columns
        pairs = zip(columns.streams[:records], columns.sequences[:records], strict=True)
        try:
            for id_, sequence in pairs:
                stream = self.streams[id_]
                if sequence >= stream.next_sequence:
                    stream.next_sequence = sequence + 1
        except KeyError as error:
            raise self.damaged(block.at, f"a record of stream {error}, which is not declared") from error

    def torn_bytes(self) -> int:
        """How much lies behind the good part, but for the zeros that were to be written over."""
        rest = os.pread(self.fd, os.fstat(self.fd).st_size - self.at, self.at)
        return len(rest.rstrip(b"\0"))

    def good_block_after(self) -> int | None:
        """The byte of a good block behind the place where the good part ended; None means a torn write."""
        size = os.fstat(self.fd).st_size
        rest = os.pread(self.fd, size - self.at, self.at)
        candidates = 0
        found = rest.find(blocks.BLOCK_MAGIC)
        while found >= 0:
            header = blocks.decode_header(rest, found)
            body_at = found + blocks.BLOCK_HEADER.size
            if header and header.first >= self.position and body_at + header.length <= len(rest):
                candidates += 1
                body = memoryview(rest)[body_at : body_at + header.length]
                if blocks.is_intact(self._seed, header, body) or candidates > _MAX_CANDIDATES:
                    return self.at + found
            found = rest.find(blocks.BLOCK_MAGIC, found + 1)
        return None
