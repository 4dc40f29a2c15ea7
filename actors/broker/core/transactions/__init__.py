"""Transactional messages: halves that wait for the decision of their producers.

What is in it, in the order to read it:
    half_message: the records of a transaction: the half, the committed message, the operation record.
    open_halves: the open halves of a broker, found in its log.
    transactional_message_service: the transactions of a broker: their ends, checks and progress.
"""
