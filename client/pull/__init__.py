"""The pull consumer, which reads queues by seek, poll and commit.

What is in it, in the order to read it:
    pull_consumer: the public class.
    pull_consumer_engine: positions, fetches and commits.
"""
