"""Backups of a store directory: made of a running or a stopped one, looked through, and restored.

What is in it, in the order to read it:
    manifest: what a backup consists of, as a file that is written last; nothing in it is believed unchecked.
    progress: what is told meanwhile.
    target: where backups are: a local folder, or whatever Arrow's file systems reach.
    source: what is backed up: the log up to a place, and the state of that moment; here that of a stopped directory.
    making, copied: a backup is made, of what the target does not have already; pruning: former ones go.
    reading: the bytes of a backup, each checked; verifying, restoring: what is done with them.
"""
