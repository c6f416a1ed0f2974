"""The client library: producers, consumers, spool, stores."""
