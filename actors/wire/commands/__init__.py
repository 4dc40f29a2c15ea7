"""Requests as values, one file per family: built by who asks, read by who answers, and their answers; no handler."""
