"""Which APIs this broker speaks, in which versions: the one table behind dispatch and ApiVersions.

Each handler registers itself with its range, so that what is advertised cannot drift from what is served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.core.contract import Request
from gapless.wire.apis import ApiKey

if TYPE_CHECKING:
    from gapless.core.node import Node

Handler = Callable[["Node", Request], Any | None]


class Api(NamedTuple):
    """One API: the versions that are served, and the lowest one that is advertised."""

    key: ApiKey
    min_version: int
    max_version: int
    advertised_min: int
    handler: Handler


APIS: dict[int, Api] = {}


def handles(
    key: ApiKey, min_version: int, max_version: int, *, advertised_min: int | None = None
) -> Callable[[Handler], Handler]:
    """Register a handler for an API's versions `min_version` to `max_version`."""

    def register(handler: Handler) -> Handler:
        lowest = min_version if advertised_min is None else advertised_min
        APIS[key] = Api(key, min_version, max_version, lowest, handler)
        return handler

    return register


def serves(api_key: int, api_version: int) -> bool:
    """Whether a request of this API and version is understood here."""
    api = APIS.get(api_key)
    return api is not None and api.min_version <= api_version <= api.max_version
