"""The rules of the cluster. No sockets, files, threads, clocks or randomness of its own."""
