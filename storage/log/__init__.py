"""Store records in the commit log, with the consume queues and index derived from it.

What is in it, in the order to read it:
    record_checker, message_writer: check the records of an append and write them.
    commit_log: the log's files and appends to them.
    dispatch, queue_table, consume_queue, queue_end, entry_writer: the entries of consume queues.
    key_index, index_file, index_sizes: the index of keys.
    high_watermark, read_barrier: which messages readers may see.
    message_reader, lease: reads and their results.
    background_flusher, checkpoint, recovery_start: sync to disk, and where the next recovery begins.
    recovery, queue_offset_validator, queue_repair, damaged_copies: repairs when a store is opened or read.
    log_salvage: a walk over a damaged log.
    retention: expiry and deletion of files.
    log_slice: the bytes that a master ships.
    log_search: find records that contain some bytes.
    replica_log: the end of a replica's log.
    record_scan: find the records in bytes of the log.
    truncation_point: check where a log can be cut.
"""
