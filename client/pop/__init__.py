"""The simple consumer: messages are lent for a time.

What is in it, in the order to read it:
    simple_consumer: what a program calls; engine: where its messages come from; requests: what it asks of brokers.
    kept: what was popped and not received; receiver: one call that receives.
    settling: what becomes of lent messages, for a push consumer that pops.
"""
