"""Reads: fetches, pulls, those that wait, and their filters."""
