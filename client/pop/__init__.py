"""The simple consumer, which receives messages under a lease.

What is in it, in the order to read it:
    simple_consumer: the public class.
    pop_consumer_engine: membership, pops and notifications.
    pop_requests: the requests to brokers.
    pop_buffer: messages that were popped and not yet received.
    receive_call: one call of `receive`.
    settlement_batcher: settle leased messages, for a push consumer with mode="pop".
"""
