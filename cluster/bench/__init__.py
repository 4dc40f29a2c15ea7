"""Measure a running cluster: the command `raymq bench`.

What is in it, in the order to read it:
    latency_histogram: percentiles of many durations in little memory.
    load_run: send or read messages on threads for some seconds, and count.
"""
