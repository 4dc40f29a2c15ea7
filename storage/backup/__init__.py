"""Make, verify and restore backups of a running or stopped store.

What is in it, in the order to read it:
    backup_manifest: the manifest of a backup, a file that is written last and checked completely when it is read.
    backup_progress: progress reports of a running operation.
    backup_target: where backups are stored: a local folder, or any file system that Arrow supports.
    backup_state: the state of a directory at one moment, in parts.
    backup_source: what is backed up: the log up to an offset, and the state at that moment; here of a stopped
        directory.
    backup_writer, extent_writer: make a backup, and copy only bytes that the target lacks; backup_retention: remove old
        backups.
    backup_reader: read the bytes of a backup and check them; backup_verification, backup_restore: check and restore
        backups.
"""
