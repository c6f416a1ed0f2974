"""Spark's columns in a PostgreSQL table: which types they get, and whether a table that is there fits.

| Spark | PostgreSQL, when we make the table | a table that is there may also have |
|---|---|---|
| string | text | varchar, char, json, jsonb, uuid, xml, inet, cidr, an enum |
| byte, short / int / long | smallint / integer / bigint | a wider integer, numeric |
| float / double | real / double precision | for float: double precision |
| decimal(p, s) | numeric(p, s) | numeric that has room for it |
| boolean, date, binary | boolean, date, bytea | |
| timestamp / timestamp_ntz | timestamptz / timestamp | |
| array, struct, map, variant | jsonb | json, text |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from psycopg import sql

from gapless.pipeline.sinks.port import SinkRefused
from gapless.pipeline.sinks.postgres.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NATIVE = {
    "string": "text",
    "varchar": "text",
    "char": "text",
    "byte": "int2",
    "short": "int2",
    "integer": "int4",
    "long": "int8",
    "float": "float4",
    "double": "float8",
    "decimal": "numeric",
    "boolean": "bool",
    "date": "date",
    "binary": "bytea",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "array": "jsonb",
    "struct": "jsonb",
    "map": "jsonb",
    "variant": "jsonb",
}
AS_JSON = frozenset({"array", "struct", "map", "variant"})
# Types whose binary form is the same: COPY goes straight into them.
_SAME_BYTES = {"text": {"varchar", "bpchar", "json", "citext"}}
# Types into which the server casts on the way.
_CAST = {
    "text": {"uuid", "jsonb", "xml", "inet", "cidr"},
    "int2": {"int4", "int8", "numeric"},
    "int4": {"int8", "numeric"},
    "int8": {"numeric"},
    "float4": {"float8"},
    "jsonb": {"json", "text", "varchar"},
}
# What has no exact equality cannot name a row.
_NO_KEYS = {"float4", "float8", "jsonb"}
_TABLE_KINDS = {"r", "p"}
# The number of a lock that everybody takes who makes a table.
_MAKING_TABLES = int.from_bytes(b"gapless\0")


class Table(NamedTuple):
    """A table's name. Without a schema it is where the connection's search_path finds it."""

    schema: str | None
    name: str

    @classmethod
    def named(cls, text: str) -> Self:
        schema, point, name = text.rpartition(".")
        if not name or (point and not schema) or "." in schema:
            raise SinkRefused(f"the table must be NAME or SCHEMA.NAME, not {text!r}")
        return cls(schema or None, name)

    def beside(self, name: str) -> Self:
        """A table in the same schema."""
        return self._replace(name=name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.name) if self.schema is None else sql.Identifier(self.schema, self.name)


class Column(NamedTuple):
    """A column: the type that COPY sends, and the one to which the server casts it on its way into the table.

    What is not `direct` cannot be copied into the table at once.
    """

    name: str
    native: str
    cast: str | None = None
    direct: bool = True


class Found(NamedTuple):
    """A column of a table that is there."""

    type: str  # what it is at bottom
    is_enum: bool
    modifier: int
    required: bool
    generated: bool
    words: str  # as a person writes the type
    unmodified: str


def exists(connection: Connection, table: Table) -> bool:
    return _oid(connection, table) is not None


def columns_of(schema: StructType) -> list[Column]:
    """The columns as we would make them."""
    if not schema.fields:
        raise SinkRefused("the rows have no columns: select at least one in the transform")
    return [Column(field.name, _native(field.name, field.dataType)) for field in schema.fields]


def definition(table: Table, schema: StructType, key: Sequence[str]) -> sql.Composed:
    """CREATE TABLE for rows of the schema."""
    lines = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_written(field.dataType)))
        for field in schema.fields
    ]
    if key:
        lines.append(sql.SQL("PRIMARY KEY ({})").format(names(key)))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(table.quoted(), sql.SQL(", ").join(lines))


def make(connection: Connection, definition: sql.Composed) -> None:
    """CREATE TABLE IF NOT EXISTS, one process after the other: two at once would collide all the same."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING_TABLES,))
        connection.execute(definition)


def names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def check_key(schema: StructType, key: Sequence[str], latest_by: str | None) -> None:
    """Whether rows can be told apart by these columns, and the latest of them by that one."""
    natives = {column.name: column.native for column in columns_of(schema)}
    for name in [*key, *([latest_by] if latest_by else [])]:
        if name not in natives:
            raise SinkRefused(f"the rows have no column {name}; they have {', '.join(natives)}")
    if doubtful := [name for name in key if natives[name] in _NO_KEYS]:
        raise SinkRefused(f"{doubtful[0]} cannot be a key: its type has no exact equality; cast it")
    if latest_by and not key:
        raise SinkRefused("latest_by chooses among rows of a key: set key, too")
    if latest_by and (latest_by in key or natives[latest_by] in {"jsonb", "bool"}):
        raise SinkRefused(
            f"latest_by cannot be {latest_by}: it must be a column that grows, and not of the key"
        )


def fitted(
    connection: Connection, table: Table, schema: StructType, key: Sequence[str]
) -> list[Column] | None:
    """The columns as the table that is there takes them; None if there is none. Raises if they do not fit."""
    oid = _oid(connection, table)
    if oid is None:
        return None
    there = _found(connection, oid)
    columns = columns_of(schema)
    if missing := [column.name for column in columns if column.name not in there]:
        raise SinkRefused(
            f"table {table} has no column {_listed(missing)} (it has {', '.join(there)}): "
            "add it to the table, or select other columns in the transform"
        )
    given = {column.name for column in columns}
    if lacking := [name for name, column in there.items() if column.required and name not in given]:
        raise SinkRefused(
            f"table {table} needs a value for {_listed(lacking)}, which the rows do not have: "
            "give it a default, or add it in the transform"
        )
    if key:
        _check_unique(connection, oid, table, key)
    types = {field.name: field.dataType for field in schema.fields}
    return [_fitted(column, types[column.name], there[column.name], table) for column in columns]


def _fitted(column: Column, spark_type: DataType, there: Found, table: Table) -> Column:
    if there.generated:
        raise SinkRefused(f"{table}.{column.name} is generated by PostgreSQL: do not select it")
    if column.native == "numeric" and there.type == "numeric":
        _check_room(column.name, spark_type, there, table)
    if there.type == column.native or there.type in _SAME_BYTES.get(column.native, ()):
        return column._replace(cast="json" if there.type == "json" else None)
    if there.type in _CAST.get(column.native, ()) or (column.native == "text" and there.is_enum):
        return column._replace(cast=there.unmodified, direct=False)
    raise SinkRefused(
        f"{table}.{column.name} is {there.words}, but the rows have {spark_type.simpleString()}, "
        f"which needs {_written(spark_type)}: cast it in the transform, or change the table"
    )


def _check_room(name: str, spark_type: Any, there: Found, table: Table) -> None:
    """A numeric with fewer places would be rounded without a word."""
    if there.modifier < 0:
        return
    precision = (there.modifier - 4) >> 16
    scale = (((there.modifier - 4) & 0x7FF) ^ 1024) - 1024
    if scale < spark_type.scale or precision - scale < spark_type.precision - spark_type.scale:
        raise SinkRefused(
            f"{table}.{name} is {there.words}, too narrow for {spark_type.simpleString()}: "
            "cast it in the transform, or change the table"
        )


def _check_unique(connection: Connection, oid: int, table: Table, key: Sequence[str]) -> None:
    """An upsert needs a unique index on just these columns."""
    found = connection.execute(
        "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a"
        " ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])"
        " WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid"
        " AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
        (oid,),
    ).fetchall()
    if not any(set(columns) == set(key) for (columns,) in found):
        columns = ", ".join(key)
        raise SinkRefused(
            f"table {table} has no unique index on ({columns}), so rows cannot be upserted by it: "
            f"run: CREATE UNIQUE INDEX ON {table} ({columns})"
        )


def _oid(connection: Connection, table: Table) -> int | None:
    name = table.quoted().as_string(connection)
    row = connection.execute(
        "SELECT c.oid, c.relkind FROM pg_class c WHERE c.oid = to_regclass(%s)", (name,)
    ).fetchone()
    if row is None:
        return None
    oid, kind = row
    if kind not in _TABLE_KINDS:
        raise SinkRefused(f"{table} is no table but a view or an index: rows cannot be copied into it")
    return int(oid)


def _found(connection: Connection, oid: int) -> Mapping[str, Found]:
    rows = connection.execute(
        "SELECT a.attname, b.typname, b.typtype = 'e',"
        " CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,"
        " a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',"
        " a.attgenerated <> '' OR a.attidentity = 'a',"
        " format_type(a.atttypid, a.atttypmod), format_type(b.oid, NULL)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (oid,),
    ).fetchall()
    return {name: Found(*rest) for name, *rest in rows}


def _native(name: str, spark_type: DataType) -> str:
    native = _NATIVE.get(spark_type.typeName())
    if native is None:
        raise SinkRefused(
            f"column {name} is {spark_type.simpleString()}, which has no type in PostgreSQL: "
            "cast it in the transform"
        )
    return native


def _written(spark_type: Any) -> str:
    native = _NATIVE[spark_type.typeName()]
    return f"numeric({spark_type.precision}, {spark_type.scale})" if native == "numeric" else native


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns)
