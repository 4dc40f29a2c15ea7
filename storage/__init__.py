"""One broker's store: files, records, recovery. Knows no Ray, no network, no asyncio.

What is in it, in the order to read it:
    records: the bytes of one record and of many; no file, and no clock but for birth.
    files: mapped files and all calls of the operating system.
    log: the commit log, the consume queues and the key index, how they are written, read, recovered and deleted.
    tables: what is small and changes, as topics, groups and their progress; timers: messages for a chosen time.
    state: the files of both as they change, for replicas; followed_state: what of it a replica's log goes by.
    backup: all of it as of one moment, kept elsewhere and restored.
    store: the facade over all of them, which `assembly` puts together, and for which `making_room` makes some where the
    disk is full; readable is its half that reads, checkpointing says what is on disk, topic_deletions what was deleted,
    age_clock how late it is for files that expire, counted_time for what lasts for days; config: its settings;
    log_beginning: an empty one, for a replica; closing: what `with` closes, also for clients.

The way of a message:
    `Store.append` is given records that `records.record.encode` or its batch forms have made;
    log.checking looks whether they are what they say, and log.writing copies them behind the end of the commit log.
    log.dispatch then makes an entry of each in its consume queue, and in the key index if it has keys;
    log.flush brings them onto the disk, and log.checkpoint notes how far that has come.
    log.reading finds an offset's entry and gives the records as views of the log; log.retention deletes old files.
"""
