"""The pull consumer, which reads queues by seek, poll and commit.

What is in it, in the order to read it:
    pull_consumer: the public class.
    pull_consumer_engine: positions and commits.
    pull_fetcher: fetches, also in advance, on the calling thread or on the event loop.
"""
