"""The producer of the client library."""
