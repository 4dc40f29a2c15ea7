"""The log and what is derived from it: commit log, queues, index of keys, and the start that puts them right.

What is in it, in the order to read it:
    checking, writing: an append, from its check to its place; commit_log: where it is written.
    dispatch, queue_table, consume_queue, queue_end, entry_writer: the entries of queues; key_index, index_file,
    index_sizes: of keys.
    confirm_point, veils: what readers may see; reading, lease: what they get.
    flush, checkpoint, walk_start: what is on disk, and where the next start begins to look.
    recovery, offset_plausibility, queue_repair, damaged: what a start, or a read, puts right; delay_tables: what was
    in force. past_damage: a walk that no damage ends.
    retention: what expires.
    shipping: what a master ships; following: a replica's end of the log; record_runs: where records stand in bytes;
    cut_place: where a log can be cut.
"""
