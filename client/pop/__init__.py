"""The simple consumer, which receives messages under a lease.

What is in it, in the order to read it:
    simple_consumer: the public class.
    pop_consumer_engine: membership, pops and notifications.
    pop_requests: the requests to brokers, also the settlements of a push consumer with mode="pop".
    pop_buffer: messages that were popped and not yet received, and one call of `receive`.
"""
