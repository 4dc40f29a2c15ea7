"""Producing: single sends, batches, lingering, the outbox.

What is in it, in the order to read it:
    producer: what a program calls; options: of each send; paths: the ways that its messages go; shared_producer: over
    an actor.
    encoding, message_batch: messages as records, and their futures; batcher: gathering them; body_limits: how long
    they may be.
    turns, queue_lines: what goes to one queue, one after the other; frames: which calls other threads are in.
    sent_results: what brokers answered; recalling: calling back.
    outbox, outbox_file: what no broker took.
"""
