"""The tests, one folder per part. Their names are the promises that they check."""
