"""Requests to brokers: fetches, requests to all brokers, offsets.

What is in it, in the order to read it:
    broker_requests, fan_out: requests to one broker, and to all; offset_requests: a group's committed offsets.
    fetch_request: fetches of many queues in one request.
    message_recall: withdraw delayed messages.
"""
