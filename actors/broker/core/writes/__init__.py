"""Staged writes as transactions: one broker decides, the others follow.

What is in it, in the order to read it:
    deciding: the home of writes, which says once and for all whether one is committed.
    following: the brokers that have rows of it, which ask the home when nobody tells them.
Rows are kept and appended by `appending.staging`.
"""
