"""The state beside the log, shipped to replicas as changes of files: a replica makes the same ones in its directory.

What is in it, in the order to read it:
    state_files: which files are state, and which are each broker's own.
    changes: a change and what is in it; change_ring: the newest of them, in memory; sequence_file: their numbers.
    recorder, recording: the master's side, which sees each change as it is made; snapshot: all state as it is.
    frozen_state: the same for a backup, which no changes follow.
    replica: the replica's side, which makes the changes; told_deletions: what its queues have to agree with.
    foreign_changes: what others change there, after which nobody knows what there is.
    queue_ends: how far queues are all of whose messages have expired, told behind a snapshot.
"""
