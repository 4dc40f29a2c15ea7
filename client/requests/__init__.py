"""Asking brokers: fetches, fan-out, offsets.

What is in it, in the order to read it:
    asking, fan_out: one broker is asked, or all; offsets: how far a group is.
    fetching, fetch_shares: fetches of many queues; direct_fetching: by the thread that waits; read_ahead: by the loop,
    before anybody asks; early_fetches: what was begun early, for both.
"""
