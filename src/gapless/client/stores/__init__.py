"""Where a consumer remembers what it has done."""
