"""Append messages: admission, encoding, deduplication and staging.

What is in it, in the order to read it:
    admission: limit the appends in progress, and follow each one to its response.
    inbound_message, send_message_processor: turn a message of a RocketMQ client into a record.
    batch_body, batch_records: the same for a batch of messages.
    idempotence, producer_state_journal: the state of idempotent producers, in memory and on disk.
    partial_batch: complete a batch of which a crash left only a part.
    staged_transaction_writer: the records that wait for a commit; staged_chunk_log: where they wait in the log.
    staged_commit: append them when the commit is decided.
    staged_folders: convert the staged rows of format 2.
    commit_deduplicator: find the rows of a commit that are in the log already.
    staged_delays: staged records that wait for a delay after their commit.
"""
