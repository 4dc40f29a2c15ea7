"""What is small and changes: settings, progress, what is in flight, what is staged.

What is in it, in the order to read it:
    frames: how what is told lies in a file; journal: a file of them, on which the others rest; kept_twice: a small file
    that has it twice. settings_table: settings by name, with topic_config,
    group_config; unread_changes: what of their journals cannot be read.
    progress, offset_tables, in_flight: how far groups and levels have come, and what is lent; request_mode: how
    groups ask.
    staged_chunk, staging: what waits for its commit; set_aside: what no copy could be made of.
    homes: which broker keeps what is kept on one only; members: which brokers were ever there;
    stream_plans: what each batch of a streaming query reads;
    write_records: what is decided about staged writes.
    remains, epochs: what the log still has, and what has been lost of it; broker_identity: what a broker keeps of
    itself; kept_settings: what tools have changed of its settings.
    epoch_starts: in which epochs of its masters the log was made; ordered_cut: what of it never was.
"""
