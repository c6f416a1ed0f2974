"""A record's identity as columns: native expressions over the column `headers`, no Python per row.

    records.select("*", identity("headers").alias("identity"))     # struct<source, incarnation, sequence>

They say what `gapless.client.formats.identity_of` says: of several headers of one name the last counts, and
what only looks like an identity is none (null). One difference: a sequence from 2^63 on, which nobody
reaches, is no identity here, so that `sequence` is a plain BIGINT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.client.formats import INCARNATION_BYTES, SEQUENCE_HEADER, SOURCE_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column

SOURCE_AT = 1 + INCARNATION_BYTES
SEQUENCE_BYTES = 8
SOURCE_PATTERN = r"[A-Za-z0-9._-]{1,150}"
VERSION = b"\x01"


def made_by(headers: str = "headers") -> Column:
    """The bytes of the header that names source and incarnation; null without one. Not judged."""
    return _last(headers, SOURCE_HEADER, 0)


def sequence_bytes(headers: str = "headers") -> Column:
    """The bytes of the header that has the sequence; null without one. Not judged."""
    return _last(headers, SEQUENCE_HEADER, 1)


def identity(headers: str = "headers") -> Column:
    """struct<source: string, incarnation: binary, sequence: bigint>, or null."""
    from pyspark.sql import functions as sf

    maker, sequence = made_by(headers), sequence_bytes(headers)
    source = sf.substring(maker, SOURCE_AT + 1, 2**31 - 1).cast("string")
    digits = sf.hex(sequence)
    genuine = (
        (sf.substring(maker, 1, 1) == sf.lit(VERSION))
        # Not `$`: in Java it also matches before a last line break.
        & source.rlike(rf"\A{SOURCE_PATTERN}\z")
        & (sf.octet_length(sequence) == SEQUENCE_BYTES)
        & (digits < "8")
    )
    found = sf.struct(
        source.alias("source"),
        sf.substring(maker, 2, INCARNATION_BYTES).alias("incarnation"),
        sf.conv(digits, 16, 10).cast("bigint").alias("sequence"),
    )
    return sf.when(genuine, found)


def _last(headers: str, name: str, usual_place: int) -> Column:
    """The value of the last header of a name. In SQL, which Java reads in one call instead of fifty."""
    from pyspark.sql import functions as sf

    searched = f"try_element_at(filter({headers}, header -> header.key = '{name}'), -1)"
    # Where Gapless alone sets headers there are these two, and nothing needs to be searched.
    usual = (
        f"size({headers}) = 2 AND get({headers}, 0).key = '{SOURCE_HEADER}'"
        f" AND get({headers}, 1).key = '{SEQUENCE_HEADER}'"
    )
    return sf.expr(f"CASE WHEN {usual} THEN get({headers}, {usual_place}).value ELSE {searched}.value END")
