"""Transactional messages: halves that wait for the decision of their producers.

What is in it, in the order to read it:
    half_message: the records of a transaction: the half, the committed message, the operation record.
    transactional_message_service: the open transactions of a broker, their ends, checks and recovery.
    transaction_checks_file: how often the producers of open transactions were asked.
"""
