"""ApiVersions: what this broker speaks, straight from the registry.

A version that is not known is answered with version 0 and UNSUPPORTED_VERSION, so that any client can find
common ground; the shell does that, since such a request cannot be decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import APIS, handles
from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ApiVersionsResponse

if TYPE_CHECKING:
    from gapless.core.node import Node


@handles(ApiKey.API_VERSIONS, 0, 4)
def api_versions(node: Node, request: Request) -> ApiVersionsResponse:
    """Every API with its range."""
    return describe_versions(ErrorCode.NONE)


def describe_versions(error: ErrorCode) -> ApiVersionsResponse:
    """The registry as a reply; with an error code for clients that asked in an unknown version."""
    return ApiVersionsResponse(
        error_code=int(error),
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=int(api.key), min_version=api.advertised_min, max_version=api.max_version
            )
            for api in sorted(APIS.values())
        ],
        throttle_time_ms=0,
        supported_features=[],
        finalized_features_epoch=-1,
        finalized_features=[],
        zk_migration_ready=False,
    )
