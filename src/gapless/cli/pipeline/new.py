"""`gapless pipeline new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gapless.cli.group import examples
from gapless.cli.output import note, say
from gapless.errors import UsageError

EXAMPLES = examples("gapless pipeline new orders.toml", "gapless pipeline new - | less")

TEMPLATE = """\
# A pipeline: topics → (duplicates out) → (transform) → sinks, each record once.
# Run it: gapless pipeline run {file}     All settings: docs/pipeline.md
# Relative paths start at this file's folder. ${{NAME}} is an environment variable.

name = "{name}"                          # part of markers in the sinks: never change it
checkpoint = "checkpoints/{name}"        # where it goes on after a stop: never lose it

[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders"]
#starting = "earliest"                   # latest, or {{ orders = {{ 0 = 17 }} }}
#value = "json"                          # bytes (default), text, json
#schema = "id BIGINT, amount DOUBLE"     # of the JSON
#on_loss = "stop"                        # when retention was quicker than we: stop or continue
#max_records_per_batch = 1000000

#[kafka]                                 # client properties, as librdkafka calls them
#security.protocol = "SASL_SSL"
#sasl.mechanism = "SCRAM-SHA-512"
#sasl.username = "me"
#sasl.password = "${{KAFKA_PASSWORD}}"

#[dedup]
#by = "identity"                         # exact, for ever; or "key", "hash" with a watermark

#[transform]
#sql = \"\"\"
#SELECT key, value FROM records WHERE key IS NOT NULL\"\"\"
#file = "orders.sql"                     # or SQL from a file, or a function from DataFrame to DataFrame
#function = "orders:clean"
#stage = true                            # for transforms that cannot be repeated

[[sinks]]
type = "kafka"
topic = "orders-clean"
#bootstrap = "other:9092"                # the source's, if not given

#[[sinks]]
#type = "delta"
#path = "tables/orders"
#key = "id"                              # rows replace rows of the same key
#latest_by = "timestamp"

#[[sinks]]
#type = "postgres"
#url = "postgresql://me:${{PGPASSWORD}}@127.0.0.1/shop"
#table = "orders"

#[[sinks]]
#type = "parquet"
#path = "files/orders"
#partition_by = ["topic"]

#[dead_letters]                          # what cannot be read, with the reason
#type = "kafka"
#topic = "orders-unreadable"

#[trigger]
#every = "1 second"                      # without it: as soon as there is something
#once = true                             # or: what is there now, and then end

#[spark]
#master = "local[*]"                     # or spark://host:7077
#spark.executor.memory = "2g"
"""


def write_example(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Where to; - is standard output.", show_default=True)
    ] = "pipeline.toml",
) -> None:
    """Write a definition to start from, with every setting explained."""
    if file == "-":
        say(example("pipeline.toml").rstrip())
        return
    path = Path(file)
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(example(file))
    except FileExistsError:
        raise UsageError(f"{file} is there already: name another file, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    note(f"wrote {file}: change it, then: gapless pipeline check {file}")


def example(file: str) -> str:
    """The text, with a pipeline that is named after its file."""
    name = "".join(
        letter if (letter.isalnum() and letter.isascii()) or letter in "-_" else "-"
        for letter in Path(file).stem
    )
    return TEMPLATE.format(file=file, name=name[:100] or "pipeline")
