"""Provide the store's file operations: mapped, preallocated and atomically replaced files.

Only this package calls the operating system's file functions.

What is in it, in the order to read it:
    file_calls, fileutil: the system calls, and atomic replacement of files.
    json_file, holes: files that are read as a whole, and the holes of sparse files.
    mapped_file, mapped_file_queue, preallocation, mapped_file_cache: sequences of mapped files of fixed size.
    disk_health, enospc_fallback, disk_reserve, descriptor_reserve: disk failures, full disks, and the disk space and
    descriptors that are reserved for them.
    directory_lock: which process owns a directory.
    background_preparer, worker_thread: work that runs in threads other than the store's writer.
"""
