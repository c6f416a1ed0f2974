"""Requests that the protocol's schemas allow and no decent client would send."""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from gapless.wire import messages
from gapless.wire.messages import REQUESTS
from gapless.wire.schema import _attribute, _includes
from tests.broker.raw import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse, batch_of


def _response_name(request: Any) -> str:
    name: str = request.__name__
    return name.replace("Request", "Response")


REQUEST_CLASSES: dict[int, Any] = {**REQUESTS, 0: ProduceRequest, 1: FetchRequest}
RESPONSE_CLASSES: dict[int, Any] = {
    **{key: getattr(messages, _response_name(request)) for key, request in REQUESTS.items()},
    0: ProduceResponse,
    1: FetchResponse,
}

TOPIC = "victim"
"""A topic that exists, so that requests get past the first check."""

_INTEGERS = (-1, 0, 1, -2, 2, 3, 5, 100, -100)
_WIDTHS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_STRINGS = (
    TOPIC,
    "",
    "0",
    ".",
    "..",
    "other",
    "retention.ms",
    "log.retention.hours",
    "cleanup.policy",
    "compact",
    "a b/c",
    "a.b",
    "a_b",
    "\x00\n",
    "ä€😀",
    "-1",
    "9" * 19,
    "9" * 5000,
    "x" * 249,
    "x" * 32_767,
)
_IDS = (UUID(int=0), UUID(int=1), UUID(int=2**128 - 1))


@cache
def records() -> st.SearchStrategy[bytes | None]:
    """What may stand where batches belong."""
    good = bytes(batch_of(b"one", b"two"))
    idempotent = bytes(batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=0))
    return st.one_of(
        st.sampled_from((None, b"", good, good + good, good[:-1], good[:61], idempotent)),
        st.binary(max_size=100),
        st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)).map(
            lambda change: good[: change[0]] + bytes((change[1],)) + good[change[0] + 1 :]
        ),
    )


@cache
def _simple(kind: str) -> st.SearchStrategy[Any]:
    if kind in _WIDTHS:
        limit = 2 ** _WIDTHS[kind]
        usual = [value for value in _INTEGERS if -limit <= value < limit]
        return st.sampled_from([*usual, -limit, limit - 1])
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "uint16": st.sampled_from((0, 1, 65535)),
        "float64": st.sampled_from((0.0, -1.0, float("inf"))),
        "uuid": st.sampled_from(_IDS),
        "string": st.sampled_from(_STRINGS),
        "bytes": st.sampled_from((b"", b"x", b"\xff" * 300)),
        "records": records(),
    }
    return strategies[kind]


def _value(container: type[Any], field: dict[str, Any], version: int) -> st.SearchStrategy[Any]:
    kind: str = field["type"]
    if kind.startswith("[]"):
        item = _value(container, {**field, "type": kind[2:]}, version)
        several = st.lists(item, max_size=3)
        repeated = st.tuples(item, st.sampled_from((2, 50))).map(lambda pair: [pair[0]] * pair[1])
        return st.one_of(several, repeated)
    if "fields" in field:
        return _struct(getattr(container, kind), field["fields"], version)
    return _simple(kind)


def _struct(container: type[Any], fields: list[dict[str, Any]], version: int) -> st.SearchStrategy[Any]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields:
        if not _includes(field["versions"], version):
            continue
        strategy = _value(container, field, version)
        tagged = _includes(field.get("taggedVersions"), version)
        if _includes(field.get("nullableVersions"), version) and not tagged:
            strategy = st.one_of(strategy, st.none())
        (optional if tagged else values)[_attribute(field["name"])] = strategy
    return st.fixed_dictionaries(values, optional=optional).map(
        lambda chosen: container(version=version, **chosen)
    )


@cache
def requests(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Schema-valid requests of one API at one version."""
    message = REQUEST_CLASSES[api_key]
    return _struct(message, message.json["fields"], version)
