"""The producers of `stage.py`."""

from __future__ import annotations

from gapless.simulator.clients.client import METADATA_VERSION
from gapless.simulator.clients.process import Part
from gapless.simulator.clients.producer import Producer
from gapless.simulator.history import Place
from gapless.simulator.odds.model import REQUEST_MS
from gapless.wire.apis import ApiKey
from gapless.wire.messages import MetadataRequest


class Sender(Producer):
    """A producer with Kafka's own patience.

    One that wants no acknowledgements hands over a batch once, but not before it has a connection: that much
    its socket tells it.
    """

    request_ms = REQUEST_MS
    confirm_ms = REQUEST_MS
    plain_tries = 1_000_000

    def leader(self, place: Place) -> Part:
        """See `Client`."""
        broker, epoch = yield from super().leader(place)
        while self.acks == 0 and not (yield from self._is_connected(broker)):
            self.forget_leader(place)
            yield self.back_off(0)
            broker, epoch = yield from super().leader(place)
        return broker, epoch

    def _is_connected(self, broker: int) -> Part:
        if self.world.network.is_open((self.number, broker)):
            return True
        answer = yield self.ask(broker, ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=[]))
        return answer is not None
