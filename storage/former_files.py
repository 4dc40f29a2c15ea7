"""Find and remove files of former formats."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.store_paths import StorePaths

#: The last format in which a file or folder of `raymq/` was in use, by its name without an ending.
_FORMATS: Final = {
    **dict.fromkeys((f"{table}.journal" for table in ("deletions", "topics", "groups", "progress", "in_flight")), 1),
    **dict.fromkeys(("homes", "members", "streams", "writes", "series", "transaction_checks"), 1),
    **dict.fromkeys(("epochs.json", "counted_time.json", "set_aside.jsonl", "settings.json", "delay_levels.json"), 2),
    **dict.fromkeys(("producers.journal", "clock.json"), 2),
    # How a replica kept the state that its master had sent as changes of files.
    **dict.fromkeys(("state_sequence", "state_snapshot", "delay_levels_aside.json", "expired_queues.json"), 2),
    **dict.fromkeys(("no_tables", "queue_ends.json"), 2),
}
_ENDINGS: Final = (".tmp", ".bak", ".base", ".beside", ".older")


def former_format(name: str) -> int:
    """Return the last format that used this name; 0: none, or today's."""
    while name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return _FORMATS.get(name, 0)


def former_files(paths: StorePaths, number: int) -> list[Path]:
    """Return files and folders used up to format `number`, with spare copies.

    Raise StoreBusy or StoreFailed if the folder cannot be read.
    """
    return [path for path in fileutil.paths_in(paths.root / "raymq") if former_format(path.name) == number]


def has_former_files(paths: StorePaths) -> bool:
    """Return True if there are files of former formats; raise as `former_files`."""
    return any(former_format(path.name) for path in fileutil.paths_in(paths.root / "raymq"))


def is_interrupted(paths: StorePaths) -> bool:
    """Return True if a replica of format 2 has half of its state."""
    return (paths.root / "raymq" / "state_snapshot").exists()


def remove_former_files(paths: StorePaths) -> None:
    """Remove the files of all former formats. Raise StoreFailed if the disk fails."""
    for number in (1, 2):
        for path in former_files(paths, number):
            failpoint("format.before_removal")
            if path.is_dir():
                fileutil.remove_tree(path)
            else:
                fileutil.remove(path)
