"""Pop consumption: messages are delivered to any member of a group under a lease.

What is in it, in the order to read it:
    pop_service, pop_request: serve pop requests; a request and its result.
    unacked_queue: the unacknowledged messages of one queue in one group.
    deadline_heap: when to check which queue.
    pop_reader: read the records that a pop delivers.
    dead_letter_recovery: find the dead messages that already have a dead letter.
"""
