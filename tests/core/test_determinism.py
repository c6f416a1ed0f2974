"""A seed replays exactly, whatever the interpreter's hash seed is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from random import Random

from gapless.wire.apis import ApiKey
from gapless.wire.messages import InitProducerIdRequest
from tests.core.harness import World, batch


def run(seed: int) -> list[tuple[int, str]]:
    """A random but seeded life of a broker."""
    world = World(seed=seed)
    random = Random(seed)
    topics = [f"topic-{number}" for number in range(5)]
    for topic in topics:
        world.create_topic(
            topic, partitions=random.randint(1, 4), flush_messages=random.choice(["1", "3", "100"])
        )
    for _ in range(200):
        topic = random.choice(topics)
        match random.randrange(5):
            case 0:
                world.send(
                    ApiKey.FETCH, 11, world.fetch_request(topic, 0, max_wait_ms=100, min_bytes=1 << 30)
                )
            case 1:
                world.advance(random.randrange(200))
            case 2:
                body = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
                world.call(ApiKey.INIT_PRODUCER_ID, 4, body)
            case 3:
                world.disconnect(1)
            case 4:
                world.produce(topic, batch(b"x" * random.randrange(100)))
    return [(now_ms, re.sub(" at 0x[0-9a-f]+", "", line)) for now_ms, line in world.trace]


def test_a_seed_replays_under_any_hash_seed() -> None:
    script = "from tests.core.test_determinism import run; import sys; sys.stdout.write(repr(run(11)))"
    traces = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10_000
