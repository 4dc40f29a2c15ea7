"""The pull consumer: seek, poll, commit.

What is in it, in the order to read it:
    pull_consumer: what a program calls; engine: positions, fetches, commits.
"""
