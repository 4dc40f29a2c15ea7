"""Requests to brokers: fetches, requests to all brokers, offsets.

What is in it, in the order to read it:
    broker_requests, fan_out: requests to one broker, and to all; offset_requests: a group's committed offsets.
    fetch_request, queue_batches: fetches of many queues in one request.
    blocking_fetcher: fetches by the calling thread, over its own socket.
    read_ahead: fetches that the event loop starts in advance; prefetch_table: the table of fetches that were started in
    advance, for both.
"""
