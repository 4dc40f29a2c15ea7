"""Files as the store needs them: mapped, allocated ahead, replaced safely. Nobody else calls the system.

What is in it, in the order to read it:
    file_calls, fileutil: the calls of the system, and safe replacement; json_file, holes: files that are read whole,
    and gaps.
    mapped_file, mapped_file_queue, preallocation, open_files: mapped files of fixed size, one behind the other.
    health, room, ballast, descriptors: a disk that fails, or is full, and what is held back for that.
    directory_lock: who owns a directory; file_work, work_thread: what is done beside the store's thread.
"""
