"""Reads: fetches, pulls, those that wait, and their filters.

What is in it, in the order to read it:
    fetching: one fetch of many queues; pulling: one pull of one queue; filtered_reading: through a filter.
    long_poll: those who wait; arrivals: what wakes them.
"""
