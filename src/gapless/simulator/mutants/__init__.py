"""Famous mistakes of replicated logs, each a replacement of one rule. The core has none of this."""
