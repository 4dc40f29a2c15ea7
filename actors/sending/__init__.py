"""Send messages: routes, the choice of a queue, tries, and sequence numbers.

The client's producers and the shared producer actor use these modules. No module here imports the broker.

What is in it, in the order to read it:
    sender: the tries of a send, on the event loop.
    send_plan: the parameters of a send, the number and the time-outs of its tries, and its outcome.
    isolation, broker_prober: which broker's queue a try goes to.
    topic_creation: create a topic by the first message to it.
    body_size: refuse bodies that are too long.
    send_counts: how many sends were stored, and how long they took.
    direct_sender: the first try in the calling thread.
    partition_sequence: the sequence numbers of idempotent sends, so that no batch is stored twice.
    batching_sender: join the batches of several callers.
"""
