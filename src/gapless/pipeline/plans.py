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
# Constants, and references to a WITH clause, which is looked at where it is defined.
_HARMLESS_LEAVES = {"LocalRelation", "OneRowRelation", "Range", "LocalTableScan", "CTERelationRef"}
_CLOCKS = {"CurrentDate", "CurrentTimestamp", "CurrentTime", "Now", "LocalTimestamp", "CurrentBatchTimestamp"}
# Their result depends on the order in which rows come, which a shuffle does not keep. Those of windows, too:
# an ORDER BY leaves the order of its ties open.
_ORDER_DEPENDENT = {
    *("AnyValue", "CollectList", "CollectSet", "First", "Last", "ListAgg", "MaxBy", "MinBy", "Mode"),
    *("ApproximatePercentile", "ApproxTopK", "HistogramNumeric"),
    *("Lag", "Lead", "NTile", "NthValue", "RowNumber"),
}
# Steps that keep some of the rows and not others: which ones depends on their order.
_CHOOSING_STEPS = {"GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample"}
# Windows over a number of rows (and not over values) that treat ties alike.
_FAIR_TO_TIES = {"CumeDist", "DenseRank", "PercentRank", "Rank"}
_BEFORE_ALL, _AFTER_ALL = "UnboundedPreceding$", "UnboundedFollowing$"
_ALL_FIELDS = 100_000


class UnrepeatablePlan(UsageError):
    """The transform may give other rows when its batch is repeated. The message says where."""


def refuse_unrepeatable(rows: DataFrame, batch: DataFrame) -> None:
    """Raise unless `rows`, made from `batch`, are the same whenever they are made from the same batch."""
    own_leaves = {
        leaf.rdd().id() for leaf in _seq(_analyzed(batch).collectLeaves()) if _class(leaf) == _BATCH_LEAF
    }
    for plan in _with_subqueries(_analyzed(rows)):
        for step in _nodes(plan):
            _refuse_foreign_leaf(step, own_leaves)
            if _class(step) in _CHOOSING_STEPS or _keeps_one_of_several(step):
                raise _order_dependent(step)
            for expression in _seq(step.expressions()):
                _refuse_unrepeatable_expression(expression)


def _refuse_foreign_leaf(step: Any, own_leaves: set[int]) -> None:
    if not step.children().isEmpty() or _class(step) in _HARMLESS_LEAVES:
        return
    if _class(step) == _BATCH_LEAF and step.rdd().id() in own_leaves:
        return
    raise UnrepeatablePlan(
        f"the transform reads something besides the batch ({_words(step)}), which may have changed "
        "when the batch is repeated after a crash: set stage = true, which keeps each batch's result"
    )


def _refuse_unrepeatable_expression(expression: Any) -> None:
    if not expression.deterministic():
        raise UnrepeatablePlan(
            f"{_words(expression)} gives another result when the batch is repeated after a crash: "
            "take it out, or set stage = true, which keeps each batch's result"
        )
    for node in _nodes(expression):
        kind = _class(node)
        if kind in _CLOCKS:
            raise UnrepeatablePlan(
                f"{_words(node)} is another time when the batch is repeated after a crash: use the "
                "record's own `timestamp`, or set stage = true, which keeps each batch's result"
            )
        if kind in _ORDER_DEPENDENT or (kind == "WindowExpression" and _counts_rows(node)):
            raise _order_dependent(node)


def _keeps_one_of_several(step: Any) -> bool:
    """dropDuplicates by some of the columns: any of the rows that agree in them may be the one that stays."""
    return _class(step) == "Deduplicate" and bool(step.keys().size() < step.child().output().size())


def _counts_rows(window: Any) -> bool:
    """Does it look at a number of rows around each, and so perhaps at some of its ties and not at others?"""
    frame = window.windowSpec().frameSpecification()
    if _class(window.windowFunction()) in _FAIR_TO_TIES or _class(frame.frameType()) != "RowFrame$":
        return False
    return (_class(frame.lower()), _class(frame.upper())) != (_BEFORE_ALL, _AFTER_ALL)


def _order_dependent(node: Any) -> UnrepeatablePlan:
    return UnrepeatablePlan(
        f"{_words(node)} depends on the order of rows, which may be another when the batch "
        "is repeated after a crash: take it out, or set stage = true, which keeps its result"
    )


def fingerprint(rows: DataFrame, *also: str) -> str:
    """Tells plans apart: equal for the same transform of another batch, in another session, kept or not."""
    # Spark's own optimized plan shows how kept rows (`persist`) are made, with numbers of that one run.
    optimizer = rows.sparkSession._jsparkSession.sessionState().optimizer()
    plan = optimizer.execute(_analyzed(rows).clone())
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


def _nodes(tree: Any) -> Iterator[Any]:
    """The steps of a plan, or the parts of an expression."""
    yield tree
    for child in _seq(tree.children()):
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
