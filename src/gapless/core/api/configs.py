"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics and of this broker.

A topic's settings change at once on all its partitions. Of a broker's, the defaults of topic settings can be
altered while it runs; the rest come from its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.api.refusals import Refusal
from gapless.core.api.registry import handles
from gapless.core.changes import Decision
from gapless.core.config_keys import BROKER, TOPIC, InvalidConfig, Key, Kind, Source
from gapless.core.config_tables import BROKER_KEYS, DYNAMIC_BROKER_KEYS, TOPIC_KEYS
from gapless.core.configs import Found
from gapless.core.contract import Request
from gapless.core.membership.decisions import floors_moved
from gapless.core.records import ConfigSet, PartitionChanged
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from gapless.core.node import Node

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


class ConfigError(Refusal):
    """Why a resource's settings cannot be shown or changed."""


class Setting(NamedTuple):
    """A setting with the value in force and all that it overrides."""

    key: Key
    found: Found
    layers: list[Found]


def describe_settings(node: Node, keys: Mapping[str, Key], own: Mapping[str, str]) -> Iterator[Setting]:
    """Every setting of `keys` (topic or broker settings) with its layers; `own` is the topic's overrides."""
    dynamic, cluster = node.dynamic_configs()
    for key in keys.values():
        if keys is TOPIC_KEYS:
            layers = list(node.settings.topic_layers(key, own, dynamic, cluster))
        else:
            layers = list(node.settings.broker_layers(key, dynamic, cluster))
        yield Setting(key, layers[0], layers)
    if keys is BROKER_KEYS:
        yield from _command_line_settings(node)


def _command_line_settings(node: Node) -> Iterator[Setting]:
    """What a broker is told on its command line, under Kafka's names: tools look for these."""
    broker = node.image.brokers[node.node_id]
    listener = f"PLAINTEXT://{broker.host}:{broker.port}"
    for name, value, doc in (
        ("advertised.listeners", listener, "Where clients connect to."),
        ("listeners", listener, "Where this broker listens."),
        ("log.dirs", node.store.location, "Where the logs are."),
    ):
        found = Found(value, Source.STATIC_BROKER, name)
        yield Setting(Key(name, Kind.STRING, value, doc), found, [found])


def _resource_keys(node: Node, resource_type: int, name: str) -> Mapping[str, Key]:
    """The settings that a resource has; raises `ConfigError` if there is no such resource."""
    if resource_type == TOPIC:
        if name not in node.image.topics:
            raise ConfigError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        return TOPIC_KEYS
    if resource_type == BROKER:
        if name not in ("", str(node.node_id)):
            raise ConfigError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node.node_id} but received {name}",
            )
        return BROKER_KEYS
    raise ConfigError(
        ErrorCode.INVALID_REQUEST, f"Resource type {resource_type} has no settings on this broker."
    )


# ------------------------------------------------------------------------------------------ DescribeConfigs


@handles(ApiKey.DESCRIBE_CONFIGS, 1, 4)
def describe_configs(node: Node, request: Request) -> DescribeConfigsResponse:
    """All settings, or those named, with their sources."""
    body: DescribeConfigsRequest = request.body
    # Asked twice, told once: an answer is hundreds of times as large as the question.
    resources = {
        (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())): resource
        for resource in body.resources
    }
    return DescribeConfigsResponse(
        throttle_time_ms=0, results=[_describe(node, body, resource) for resource in resources.values()]
    )


def _describe(
    node: Node, body: DescribeConfigsRequest, resource: DescribeConfigsRequest.DescribeConfigsResource
) -> DescribeConfigsResponse.DescribeConfigsResult:
    try:
        keys = _resource_keys(node, resource.resource_type, resource.resource_name)
        error, message, settings = ErrorCode.NONE, None, list(_settings(node, keys, resource))
    except ConfigError as problem:
        error, message, settings = problem.code, str(problem), []
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_code=int(error),
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_describe_setting(setting, resource.resource_type, body) for setting in settings],
    )


def _settings(
    node: Node, keys: Mapping[str, Key], resource: DescribeConfigsRequest.DescribeConfigsResource
) -> Iterator[Setting]:
    own = node.image.configs.get((resource.resource_type, resource.resource_name), {})
    for setting in describe_settings(node, keys, own):
        named = not resource.configuration_keys or setting.key.name in resource.configuration_keys
        # The unnamed broker stands for the cluster-wide dynamic settings only.
        shown = resource.resource_type == TOPIC or resource.resource_name or setting.key.name in own
        if named and shown:
            yield setting


def _describe_setting(
    setting: Setting, resource_type: int, body: DescribeConfigsRequest
) -> DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult:
    answer_type = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    return answer_type(
        name=setting.key.name,
        value=setting.found.value,
        read_only=resource_type == BROKER and setting.key.name not in DYNAMIC_BROKER_KEYS,
        is_default=setting.found.source is Source.DEFAULT,
        config_source=int(setting.found.source),
        is_sensitive=False,
        synonyms=[
            answer_type.DescribeConfigsSynonym(name=found.name, value=found.value, source=int(found.source))
            for found in setting.layers
        ]
        if body.include_synonyms
        else [],
        config_type=int(setting.key.kind),
        documentation=setting.key.doc if body.include_documentation else None,
    )


# --------------------------------------------------------------------------------------------- AlterConfigs


@handles(ApiKey.ALTER_CONFIGS, 0, 2)
def alter_configs(node: Node, request: Request) -> None:
    """Replace all settings of each resource by those given."""
    body: AlterConfigsRequest = request.body

    def wanted(resource: AlterConfigsRequest.AlterConfigsResource, _now: dict[str, str]) -> dict[str, str]:
        missing = [config.name for config in resource.configs if config.value is None]
        if missing:
            raise ConfigError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(missing)}"
            )
        return {config.name: config.value or "" for config in resource.configs}

    _alter(node, request, body.resources, body.validate_only, wanted, AlterConfigsResponse)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
def incremental_alter_configs(node: Node, request: Request) -> None:
    """Set, delete, append to or subtract from single settings."""
    body: IncrementalAlterConfigsRequest = request.body

    def wanted(
        resource: IncrementalAlterConfigsRequest.AlterConfigsResource, now: dict[str, str]
    ) -> dict[str, str]:
        keys = _resource_keys(node, resource.resource_type, resource.resource_name)
        result = dict(now)
        for config in resource.configs:
            _apply_operation(result, keys, config.name, config.config_operation, config.value)
        return result

    _alter(node, request, body.resources, body.validate_only, wanted, IncrementalAlterConfigsResponse)


def _apply_operation(
    values: dict[str, str], keys: Mapping[str, Key], name: str, operation: int, value: str | None
) -> None:
    key = keys.get(name)
    if key is None:
        raise ConfigError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if operation == DELETE:
        values.pop(name, None)
        return
    if value is None:
        raise ConfigError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {name}")
    if operation == SET:
        values[name] = value
        return
    if operation not in (APPEND, SUBTRACT):
        raise ConfigError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    if key.kind is not Kind.LIST:
        raise ConfigError(ErrorCode.INVALID_CONFIG, f"Can't append or subtract: {name} is not a list")
    items = [item for item in values.get(name, key.default).split(",") if item]
    change = [item for item in value.split(",") if item]
    if operation == APPEND:
        items += [item for item in change if item not in items]
    else:
        items = [item for item in items if item not in change]
    values[name] = ",".join(items)


def _alter(node, request, resources, validate_only, wanted, response_type) -> None:  # type: ignore[no-untyped-def]
    """Decide each resource on its own; both APIs differ only in how they name the wanted settings."""

    def answer(resource, code: ErrorCode, message: str | None):  # type: ignore[no-untyped-def]
        return response_type.AlterConfigsResourceResponse(
            error_code=int(code),
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    def decide() -> Decision:
        records: list[ConfigSet] = []
        answers = []
        mentions = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for resource in resources:
            try:
                kind, name = resource.resource_type, resource.resource_name
                if mentions[kind, name] > 1:
                    raise ConfigError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                keys = _resource_keys(node, kind, name)
                now = node.image.configs.get((kind, name), {})
                after = wanted(resource, dict(now))
                _check(node, kind, keys, after)
                changes = _difference(kind, name, now, after)
                records += [] if validate_only else changes
                answers.append(answer(resource, ErrorCode.NONE, None))
            except ConfigError as error:
                answers.append(answer(resource, error.code, str(error)))
        return Decision(
            [*records, *_moved_floors(node, records)],
            lambda: response_type(throttle_time_ms=0, responses=answers),
        )

    def failed(reason: str):  # type: ignore[no-untyped-def]
        answers = [answer(resource, ErrorCode.UNKNOWN_SERVER_ERROR, reason) for resource in resources]
        return response_type(throttle_time_ms=0, responses=answers)

    node.change(request, decide, failed)


def _moved_floors(node: Node, changes: Sequence[ConfigSet]) -> list[PartitionChanged]:
    """What a change of min.insync.replicas means for who is eligible to lead; see `floors_moved`."""
    moved = [change for change in changes if change.key == "min.insync.replicas"]
    names = [change.resource_name for change in moved if change.resource_type == TOPIC]
    if any(change.resource_type == BROKER for change in moved):
        names = list(node.image.topics)
    configs = {key: dict(values) for key, values in node.image.configs.items()}
    for change in moved:
        values = configs.setdefault((change.resource_type, change.resource_name), {})
        if change.value is None:
            values.pop(change.key, None)
        else:
            values[change.key] = change.value
    return list(floors_moved(node.image, lambda name: node.membership.policy(name, configs), names))


def _check(node: Node, resource_type: int, keys: Mapping[str, Key], values: Mapping[str, str]) -> None:
    try:
        for name, value in values.items():
            if name not in keys:
                raise ConfigError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
            if resource_type == BROKER and name not in DYNAMIC_BROKER_KEYS:
                raise ConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot update {name} while the broker runs: set it in its file and restart.",
                )
            keys[name].parse(value)
    except InvalidConfig as error:
        raise ConfigError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _difference(kind: int, name: str, now: Mapping[str, str], after: Mapping[str, str]) -> list[ConfigSet]:
    changed = [ConfigSet(kind, name, key, value) for key, value in after.items() if now.get(key) != value]
    return changed + [ConfigSet(kind, name, key, None) for key in now if key not in after]
