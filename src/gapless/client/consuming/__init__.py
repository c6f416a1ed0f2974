"""From a partition to a handler, and the offset behind it."""
