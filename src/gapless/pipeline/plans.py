"""Can a batch be made a second time, and come out the same?

After a crash Spark runs the batch again from the same offsets. Where some tasks had already committed, that
is sound only if the same rows come to the same tasks. A plan that draws random numbers, asks for the time, or
joins something that may have changed meanwhile cannot promise it: it is refused, unless the batch is staged
first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_LEAF = "LogicalRDD"
_CONSTANT_LEAVES = {"LocalRelation", "OneRowRelation", "Range", "LocalTableScan"}
_CLOCKS = {"CurrentDate", "CurrentTimestamp", "CurrentTime", "Now", "LocalTimestamp", "CurrentBatchTimestamp"}
# Their result depends on the order in which rows come, which a shuffle does not keep.
_ORDER_DEPENDENT = {
    *("AnyValue", "CollectList", "CollectSet", "First", "Last", "ListAgg", "MaxBy", "MinBy", "Mode"),
}
_ALL_FIELDS = 100_000


class UnrepeatablePlan(UsageError):
    """The transform may give other rows when its batch is repeated. The message says where."""


def refuse_unrepeatable(rows: DataFrame, batch: DataFrame) -> None:
    """Raise unless `rows`, made from `batch`, are the same whenever they are made from the same batch."""
    own_leaves = {
        leaf.rdd().id() for leaf in _seq(_analyzed(batch).collectLeaves()) if _class(leaf) == _BATCH_LEAF
    }
    for plan in _with_subqueries(_analyzed(rows)):
        for leaf in _seq(plan.collectLeaves()):
            kind = _class(leaf)
            if kind in _CONSTANT_LEAVES or (kind == _BATCH_LEAF and leaf.rdd().id() in own_leaves):
                continue
            raise UnrepeatablePlan(
                f"the transform reads something besides the batch ({_words(leaf)}), which may have changed "
                "when the batch is repeated after a crash: set stage = true, which keeps each batch's result"
            )
        for expression in _expressions(plan):
            if not expression.deterministic():
                raise UnrepeatablePlan(
                    f"{_words(expression)} gives another result when the batch is repeated after a crash: "
                    "take it out, or set stage = true, which keeps each batch's result"
                )
            for node in _nodes(expression):
                if _class(node) in _CLOCKS:
                    raise UnrepeatablePlan(
                        f"{_words(node)} is another time when the batch is repeated after a crash: use the "
                        "record's own `timestamp`, or set stage = true, which keeps each batch's result"
                    )
                if _class(node) in _ORDER_DEPENDENT:
                    raise UnrepeatablePlan(
                        f"{_words(node)} depends on the order of rows, which may be another when the batch "
                        "is repeated after a crash: take it out, or set stage = true, which keeps its result"
                    )


def fingerprint(rows: DataFrame, *also: str) -> str:
    """Tells plans apart: equal for the same transform of another batch, in another session."""
    plan = rows._jdf.queryExecution().optimizedPlan()
    text = plan.treeString(False, False, _ALL_FIELDS, False, False)
    # Spark numbers columns as they come, so the same plan has other numbers each time.
    unnumbered = re.sub(r"#\d+L?", "", text)
    conf = rows.sparkSession.conf
    settings = [rows.sparkSession.version, str(conf.get("spark.sql.session.timeZone"))]
    return hashlib.sha256("\n".join([unnumbered, *settings, *also]).encode()).hexdigest()[:16]


def _analyzed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _with_subqueries(plan: Any) -> Iterator[Any]:
    yield plan
    yield from _seq(plan.subqueriesAll())


def _expressions(plan: Any) -> Iterator[Any]:
    yield from _seq(plan.expressions())
    for child in _seq(plan.children()):
        yield from _expressions(child)


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _seq(expression.children()):
        yield from _nodes(child)


def _seq(scala_seq: Any) -> Iterator[Any]:
    for index in range(scala_seq.size()):
        yield scala_seq.apply(index)


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _words(node: Any) -> str:
    """The node as Spark writes it, without column numbers and on one short line."""
    text = re.sub(r"#\d+L?", "", node.toString()).strip().splitlines()[0]
    return text if len(text) <= 80 else text[:77] + "..."
