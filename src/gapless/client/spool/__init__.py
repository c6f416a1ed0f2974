"""Records on the local disk of a producer, until the cluster has them."""
