"""Small durable tables of a store: settings, offsets, messages in flight, staged writes.

What is in it, in the order to read it:
    state_tables: the tables that are kept in the state journal (storage/journal).
    settings_table: a table of settings by name; topic_config, group_config: the settings of topics and groups.
    deleted_topics: deleted topics whose records are still in the log.
    consumer_offsets, delay_offsets, offset_files: the committed offsets of groups and delay levels.
    in_flight_messages: messages that were delivered by pop and are not acknowledged.
    request_mode: whether a group's members pull or pop a topic.
    staged_chunk, staged_records: records that are staged until their write is committed.
    quarantined_messages: messages of which no copy could be made.
    coordinator_table: which broker coordinates a key, and the brokers that have ever been in the cluster.
    stream_plan_store: which messages each batch of a streaming query reads.
    write_transactions: the decisions about staged writes.
    transaction_checks: how often the producers of open transactions were asked.
    producer_states: the saved states of idempotent producers.
    delay_level_history: which delay levels applied to which part of the log.
    recovery_epochs: where the log was truncated. counted_time: how long the store was open.
    broker_identity: the name, address and epoch of a broker; dynamic_config: settings that tools changed at run time.
    leader_epoch_checkpoint: the leader epochs of the log; pending_truncation: an ordered truncation of the log.
    mirrored_file: a small file that holds its value twice.
"""
