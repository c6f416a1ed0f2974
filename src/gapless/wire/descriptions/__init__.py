"""Descriptions of messages that kafka-python does not ship, in the form that it and `schema` compile."""
