"""What is small and changes: settings, progress, what is in flight, what is staged.

What is in it, in the order to read it:
    journal: a file of frames, on which the others rest; settings_table: settings by name, with topic_config,
    group_config.
    progress, offset_tables, in_flight: how far groups and levels have come, and what is lent; request_mode: how
    groups ask.
    staging: what waits for its commit; set_aside: what no copy could be made of.
    remains, epochs: what the log still has, and what has been lost of it; broker_identity: what a broker keeps of
    itself.
"""
