"""Records that cannot be read as they should be are set aside, with the reason, and stop nobody.

    good, bad = judge_records(rows, "json", "id BIGINT NOT NULL, amount DOUBLE")

`bytes` refuses nothing. `text` is UTF-8. `json` is one object that fits the schema: fields may be missing
unless they are NOT NULL, a field of another type is poison, and so is anything before or after the object.
A record without a value (a tombstone) is no poison: it says that its key is deleted, and comes with null for
the value and every field.

All by native expressions, in the tasks that read the source, so both halves stay aligned with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

REASON_HEADER = "gapless.reason"
WHERE_HEADERS = {"gapless.topic": "topic", "gapless.partition": "partition", "gapless.offset": "offset"}
MOVED = "record_"
"""Before the name of a record's own column whose name a field of the JSON has taken."""
_REASON, _PARSED, _RECORD, _CORRUPT = "gapless_reason", "gapless_parsed", "gapless_record", "gapless_corrupt"
_NOWHERE = " (add [dead_letters] to set such records aside and go on)"
_BAD_COLUMNS = ("key", "value", "headers", "reason", "topic", "partition", "offset", "timestamp")


class Judged(NamedTuple):
    """Records that can be read, in the columns of their kind; and the others, if there can be any."""

    good: DataFrame
    bad: DataFrame | None
    """Columns for any sink: key, value (the bytes as they were), headers (more by those that say why and
    whence), and plainly reason, topic, partition, offset, timestamp."""


def judge_records(rows: DataFrame, value: str, schema: str | None = None, *, strict: bool = False) -> Judged:
    """Part the records by whether their value is what it should be: bytes, text or json.

    With `strict` there is nowhere to set records aside: the first that cannot be read fails its task.
    """
    if value == "bytes":
        return Judged(rows, None)
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    if value == "text":
        judged = rows.withColumn(_REASON, sf.when(_is_no_text(text), "the value is not UTF-8"))
        return Judged(_unjudged(judged, strict).withColumn("value", text), _bad(judged))
    fields = parsed_schema(schema)
    judged = rows.withColumn(_PARSED, _parsed(text, fields)).withColumn(_REASON, _why_not(text, fields))
    return Judged(_with_fields(_unjudged(judged, strict), fields), _bad(judged))


def parsed_schema(schema: str | None) -> StructType:
    """The schema of the JSON; `NOT NULL` is kept. Raises a clear error for one that cannot be."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not schema or not schema.strip():
        raise UsageError('json needs a schema, such as "id BIGINT, amount DOUBLE"')
    try:
        fields = StructType.fromDDL(schema)
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"the schema of the source cannot be read: {first}") from None
    if not isinstance(fields, StructType):
        raise UsageError(f'the schema of the source has no names: write "id BIGINT", not {schema!r}')
    names = [name.lower() for name in fields.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"the schema of the source has {', '.join(twice)} more than once")
    return fields


def _is_no_text(text: Column) -> Column:
    from pyspark.sql import functions as sf

    return ~sf.is_valid_utf8(text)  # null for null: a tombstone is no poison


def _parsed(text: Column, fields: StructType) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    # What must be there is judged by us: Spark takes every field of parsed JSON for nullable.
    nullable = StructType([StructField(field.name, field.dataType, True) for field in fields.fields])
    wrapped = StructType([StructField(_RECORD, ArrayType(nullable)), StructField(_CORRUPT, StringType())])
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "allowSingleQuotes": "false",
    }
    # Spark does not look at what follows an object. In brackets, whatever follows is a mistake or one more.
    return sf.from_json(sf.concat(sf.lit(f'{{"{_RECORD}":['), text, sf.lit("]}")), wrapped, options)


def _why_not(text: Column, fields: StructType) -> Column:
    """The reason why a record cannot be read; null if it can."""
    from pyspark.sql import functions as sf

    found, corrupt = sf.col(_PARSED)[_RECORD], sf.col(_PARSED)[_CORRUPT]
    record = sf.get(found, sf.lit(0))
    is_json = sf.get_json_object(text, "$").isNotNull()
    reason = (
        sf.when(text.isNull(), sf.lit(None).cast("string"))
        .when(_is_no_text(text), "the value is not UTF-8")
        .when(sf.trim(text) == "", "the value is empty")
        .when(corrupt.isNotNull() & ~is_json, "the value is not JSON")
        .when(
            corrupt.isNotNull() | found.isNull() | (sf.size(found) != 1) | record.isNull(),
            "the value is not one JSON object that fits the schema",
        )
    )
    for field in fields.fields:
        if not field.nullable:
            reason = reason.when(record[field.name].isNull(), f"the field {field.name} is missing")
    return reason


def _unjudged(judged: DataFrame, strict: bool) -> DataFrame:
    from pyspark.sql import functions as sf

    readable = sf.col(_REASON).isNull()
    if strict:
        where = sf.concat_ws("-", "topic", "partition")
        words = sf.concat(where, sf.lit(", offset "), "offset", sf.lit(": "), _REASON, sf.lit(_NOWHERE))
        readable = sf.when(readable, True).otherwise(sf.raise_error(words).cast("boolean"))
    return judged.filter(readable).drop(_REASON)


def _with_fields(good: DataFrame, fields: StructType) -> DataFrame:
    """Beside the record's own columns those of the JSON, whose names go first."""
    from pyspark.sql import functions as sf

    taken = {name.lower() for name in fields.names}
    own = {
        name: f"{MOVED}{name}" if name.lower() in taken else name for name in good.columns if name != _PARSED
    }
    clash = [name for name in own.values() if name.startswith(MOVED) and name.lower() in taken]
    if clash:
        raise UsageError(
            f"the schema of the source has {clash[0]}, which is needed for a record's own column"
        )
    columns = [sf.col(name).alias(called) for name, called in own.items()]
    record = sf.get(sf.col(_PARSED)[_RECORD], sf.lit(0))
    return good.select(*columns, *(record[name].alias(name) for name in fields.names))


def _bad(judged: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    def header(name: str, column: str) -> Column:
        return sf.struct(
            sf.lit(name).alias("key"), sf.col(column).cast("string").cast("binary").alias("value")
        )

    no_headers = sf.array().cast("array<struct<key:string,value:binary>>")
    told = sf.array(
        header(REASON_HEADER, "reason"), *(header(name, column) for name, column in WHERE_HEADERS.items())
    )
    bad = judged.filter(sf.col(_REASON).isNotNull()).withColumnRenamed(_REASON, "reason")
    headers = sf.concat(sf.coalesce(sf.col("headers"), no_headers), told)
    return bad.withColumn("headers", headers).select(*_BAD_COLUMNS)
