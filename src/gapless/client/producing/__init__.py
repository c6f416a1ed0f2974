"""From `Producer.send` to the cluster's acknowledgement."""
