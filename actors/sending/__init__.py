"""What every sender needs: routes, choice of a queue, tries, numbers. Knows no broker.

What is in it, in the order to read it:
    sender: the tries of a send, on the event loop; send_plan: how many, how long, and what the outcome is called.
    selection, isolation, probing: which broker's queue; topic_creation: a topic that sending makes; longest_body:
    what is too long.
    direct: the first try in the calling thread.
    sequencing, idempotent, direct_idempotent, queue_turn: the same with numbers, so that nothing is stored twice.
    shared_batches: many callers' batches joined.
"""
