"""The state journal: a store's state beside its log, as typed events.

What is in it, in the order to read it:
    journal_frames: the format of entries in a file.
    recovery_bounds: what the log still has after recovery.
    journaled_table: a table in memory whose changes are events.
    journal_files: the files of the journal and its snapshots, and how a start reads them.
    journal_event, replication_backlog: an event as replicas get it, and the newest events in memory.
    journal_copy: the files of a journal at one moment, and how a replica puts them in the place of its own.
    state_journal: append events, sync them, and compact them into snapshots.

docs/internals/state.md draws it.
"""
