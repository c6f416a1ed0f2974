"""All checkers, in the order in which they look at the end: what names a record comes first."""

from gapless.simulator.checkers import (  # noqa: F401, I001  the order counts
    high_watermark,
    one_leader,
    in_sync,
    ascending_log,
    expired_early,
    logs_equal,
    lost_write,
    duplicate,
    aborted_read,
    torn_transaction,
    inconsistent_offsets,
    nonmonotonic_poll,
    nonmonotonic_send,
    poll_skip,
    unseen,
    relayed_once,
    group_owned_twice,
    group_offsets,
    group_unseen,
    liveness,
)
