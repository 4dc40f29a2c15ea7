"""Replicate the state beside the log as changes of files.

A replica applies the file changes of its master in its own directory.

What is in it, in the order to read it:
    state_files: which files are state, and which are local to each broker.
    state_changes: encode and decode one change; replication_backlog: the newest changes, in memory; sequence_file: the
        numbers of changes.
    state_recorder, recording_file_calls: the master's side, which records each change as it is made; state_snapshot:
        all state at one moment.
    backup_snapshot: all state at one moment for a backup, without the changes that follow.
    state_replica: the replica's side, which applies the changes; topic_deletion_journal: the deletions that its queues
        have to agree with; delay_levels_of_replica: the delay levels that they have to agree with.
    untracked_writes: unnumbered changes, after which the state of the files is unknown.
    expired_queue_offsets: the ends of queues whose messages have all expired, sent after a snapshot.
"""
