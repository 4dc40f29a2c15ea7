"""Staged writes as transactions: one broker decides, the others follow.

What is in it, in the order to read it:
    transaction_coordinator: decide once and for all whether a write is committed.
    in_doubt_tracker: on brokers with rows of a write, track when to query its coordinator.
Rows are stored and appended by `appending.staged_transaction_writer`.
"""
