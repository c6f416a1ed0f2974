"""DescribeCluster: the brokers and who watches over them. Endpoint type 1 is brokers; there are no others.

From version 2 on a client may ask for fenced brokers, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import DescribeClusterRequest, DescribeClusterResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

NOT_ASKED = {31}
CLUSTER_OPERATIONS = {5, 7, 8, 9, 10, 11, 12}
TOPIC_OPERATIONS = {3, 4, 5, 6, 7, 8, 10, 11}
"""Without an authorizer a client may do everything; the numbers are Kafka's codes for operations."""


@handles(ApiKey.DESCRIBE_CLUSTER, 0, 2)
def describe_cluster(node: Node, request: Request) -> DescribeClusterResponse:
    """The live brokers, and the fenced ones if asked for."""
    body: DescribeClusterRequest = request.body
    if body.endpoint_type not in (1, None):
        return DescribeClusterResponse(
            error_code=int(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            error_message="this listener serves brokers only",
            endpoint_type=1,
            cluster_id="",
            controller_id=-1,
            brokers=[],
            authorized_operations=NOT_ASKED,
        )
    wants_fenced = request.header.api_version >= 2 and body.include_fenced_brokers
    return DescribeClusterResponse(
        error_code=0,
        error_message=None,
        endpoint_type=1,
        cluster_id=node.cluster_id,
        controller_id=controller_id(node),
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.node_id,
                host=broker.host,
                port=broker.port,
                rack=None,
                is_fenced=broker.fenced,
            )
            for broker in node.image.brokers.values()
            if wants_fenced or not broker.fenced
        ],
        authorized_operations=CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED,
    )


def controller_id(node: Node) -> int:
    """The broker that clients should send changes of the cluster's shape to; -1 while there is none."""
    controller = node.image.controller.node_id
    return controller if node.image.is_live(controller) else -1
