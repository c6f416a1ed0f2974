"""ApiVersions: what this broker speaks, straight from the registry.

A version that is not known is answered with version 0 and UNSUPPORTED_VERSION, so that any client can find
common ground; the shell does that, since such a request cannot be decoded.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gapless.core.api.registry import APIS, handles
from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ApiVersionsResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

FEATURES = {"group.version": 1, "transaction.version": 2}
"""The levels in force of what all brokers must agree on.

Level 1 of groups has the newer consumer protocol (KIP-848); at level 2 of transactions each has its own epoch
(KIP-890).
"""


@handles(ApiKey.API_VERSIONS, 0, 4)
def api_versions(node: Node, request: Request) -> ApiVersionsResponse:
    """Every API with its range, and every feature with its level."""
    response = describe_versions(ErrorCode.NONE)
    if request.header.api_version >= 4:  # clients before that cannot read a lowest level of 0
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in FEATURES.items()
        ]
    response.finalized_features = _levels()
    response.finalized_features_epoch = node.image.version
    return response


@cache
def _levels() -> list[ApiVersionsResponse.FinalizedFeatureKey]:
    return [
        ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in FEATURES.items()
    ]


@cache
def _ranges() -> list[ApiVersionsResponse.ApiVersion]:
    """Made once: brokers ask each other several times a second, and what is registered stays."""
    return [
        ApiVersionsResponse.ApiVersion(
            api_key=int(api.key), min_version=api.advertised_min, max_version=api.max_version
        )
        for api in sorted(APIS.values())
    ]


def describe_versions(error: ErrorCode) -> ApiVersionsResponse:
    """The registry as a reply; with an error code for clients that asked in an unknown version."""
    return ApiVersionsResponse(
        error_code=int(error),
        api_keys=_ranges(),
        throttle_time_ms=0,
        supported_features=[],
        finalized_features_epoch=-1,
        finalized_features=[],
        zk_migration_ready=False,
    )
