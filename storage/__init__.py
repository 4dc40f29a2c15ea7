"""One broker's store: files, records and recovery, without Ray, network or asyncio.

What is in it, in the order to read it:
    records: encode and decode one record or many.
    files: memory-mapped files, and all calls of the operating system.
    log: the commit log, the consume queues and the key index: write, read, recover, delete by retention.
    tables: small mutable state, such as topics, groups and offsets; timers: messages with a delivery time.
    journal: the state journal, which stores the tables as events, and ships these events to replicas.
    backup: back up and restore a whole store.
    store: the facade over all of them; store_parts builds and recovers the parts, store_reader is the reading half.
    config, setting_spec: the store's settings. store_paths, directory_format: the files of its directory.
    state_opening: open the state journal; rocketmq_files: read and write RocketMQ's files; former_files, format_1,
        format_2: read the files of former formats. expired_queue_offsets: the ends of queues that a replica gets.
    checkpointer: write checkpoints; retention_clock, uptime_clock: the clocks; topic_deletions: topics that were
        deleted.
    histogram: counts of observed values, such as latencies.
    typed_json: values of msgspec's types as JSON.
    emergency_cleaner: free space for a start on a full disk; table_repair, verify: find and repair damaged files;
        empty_log: the log of a new replica.

The path of a message:
    `Store.append` receives records that `records.record.encode` or its batch forms encoded;
    log.record_checker checks them, and log.message_writer copies them to the end of the commit log.
    log.dispatch adds an entry for each record to its consume queue, and to the key index if the record has keys;
    log.background_flusher writes them to the disk, and log.checkpoint records up to which offset that is done.
    log.message_reader finds an offset's entry and returns views of the log; log.retention deletes old files.
"""
