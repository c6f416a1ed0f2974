"""The log on files and its twin in memory."""
