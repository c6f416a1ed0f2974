"""FindCoordinator: who coordinates a group or a transaction. Nobody yet, as Kafka says while it starts.

It must be advertised all the same: librdkafka takes a broker without it for one too old to know lz4, and then
sends what should be lz4 uncompressed, without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

FIRST_VERSION_WITH_MANY_KEYS = 4
ERROR = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
MESSAGE = "this broker has no groups and no transactions"


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
def find_coordinator(_node: Node, request: Request) -> FindCoordinatorResponse:
    """Not available, for every key; asked twice, told once."""
    body: FindCoordinatorRequest = request.body
    if request.header.api_version < FIRST_VERSION_WITH_MANY_KEYS:
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=ERROR, error_message=MESSAGE, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=ERROR, error_message=MESSAGE
            )
            for key in dict.fromkeys(body.coordinator_keys)
        ],
    )
