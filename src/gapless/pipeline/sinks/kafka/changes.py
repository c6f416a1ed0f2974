"""Changes a marker outside of any batch: to make it, to keep it alive, to restore it.

As in a task: first fence whoever may be writing under this name, then look, then commit. So nobody's work is
overwritten, and nobody can go on beside us.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException

from gapless.errors import Unreachable
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.markers import Marker, Register
from gapless.pipeline.sinks.kafka.sender import InDoubt, Sender, TransactionLost

Change = Callable[[Marker | None, str], Marker | None]
"""From what is there, and the name of the producer that asks, to what shall be there; None leaves it."""
_ATTEMPTS = 3


def change_marker(target: Target, name: str, change: Change) -> Marker | None:
    """The marker as it is afterwards."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _change_once(target, name, change)
        except (InDoubt, TransactionLost) as error:
            if attempt == _ATTEMPTS:
                raise Unreachable(f"the marker of {name} cannot be written: {error}") from error
        except KafkaException as error:
            raise Unreachable(f"the marker of {name} cannot be read: {error.args[0].str()}") from error
    return None


def _change_once(target: Target, name: str, change: Change) -> Marker | None:
    register, sender = Register(target, name), Sender(target, name)
    try:
        sender.init()
        found = register.read()
        wanted = change(found, sender.instance)
        if wanted is not None:
            sender.begin()
            sender.mark(register, wanted)
            sender.commit()
        return wanted or found
    finally:
        sender.discard()
        register.close()
