"""Groups of the newer consumer protocol, in which the broker assigns partitions. Begin with `heartbeat`."""

import gapless.core.groups  # noqa: F401  holds these groups, too; whichever is imported first, it must begin
