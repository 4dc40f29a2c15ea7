"""From an append to a record: what is accepted, refused, numbered, staged.

What is in it, in the order to read it:
    admission: how much may be under way; append_under_way: one append from its admission to its answer.
    inbound_message, foreign_send: a message of a RocketMQ client becomes a record; batch_body, batch_records: many
    do.
    idempotence, producer_history: what is known of producers that number their batches; cut_batch: what is missing of
    one of these; staging: what waits for a commit, stored_rows: what of it is in the log; staged_delays: what is
    to wait longer.
"""
