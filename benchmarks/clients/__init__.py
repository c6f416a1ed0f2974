"""The load: each client runs in a process of its own, so that its CPU time is known apart."""
