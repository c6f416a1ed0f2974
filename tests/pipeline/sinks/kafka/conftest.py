"""Two output clusters: `output` runs a test on the embedded broker and on Apache Kafka."""

from __future__ import annotations

import pytest

from tests.servers import ApacheBehindProxy


@pytest.fixture(params=["embedded", "apache"])
def output(request: pytest.FixtureRequest) -> str:
    """Where to reach the cluster."""
    if request.param == "embedded":
        return str(request.getfixturevalue("bootstrap"))
    apache: ApacheBehindProxy = request.getfixturevalue("apache")
    return apache.bootstrap
