"""The messages of the newer consumer protocol, described here since kafka-python has none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gapless.wire.kafka_package  # noqa: F401  must come before anything of kafka

# isort: split
from kafka.protocol.api_message import ApiMessage

_DESCRIPTIONS = "gapless.wire.descriptions"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_DESCRIPTIONS):
    """A member shows itself, and says what has changed since the last time."""

    TopicPartitions: ClassVar[Any]

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_DESCRIPTIONS):
    """A member's epoch, and its assignment if that has changed."""

    Assignment: ClassVar[Any]

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_DESCRIPTIONS):
    """An administrator asks about groups."""

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_DESCRIPTIONS):
    """Groups with their members, what these have and what they are to have."""

    DescribedGroup: ClassVar[Any]

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
