"""Reads: fetches, pulls, long polls, and their filters.

What is in it, in the order to read it:
    fetch_session: one fetch of many queues.
    pull_reader: one pull of one queue.
    filtered_reader: read a queue through a filter.
    long_poll: the parked requests.
    arrival_notifier: wake parked requests when messages become readable.
"""
