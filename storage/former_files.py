"""Find and remove the files of former formats, whose content is in the state journal now."""

from __future__ import annotations

from pathlib import Path

from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.state.state_files import RAYMQ_FOLDER, former_format
from raymq.storage.store_paths import StorePaths


def former_files(paths: StorePaths, number: int) -> list[Path]:
    """Return the files and folders that were state up to format `number`, with their spare copies.

    Raise StoreBusy or StoreFailed if the folder cannot be read.
    """
    found = fileutil.paths_in(paths.root / RAYMQ_FOLDER)
    return [path for path in found if former_format(f"{RAYMQ_FOLDER}/{path.name}") == number]


def remove_former_files(paths: StorePaths) -> None:
    """Remove the files of all former formats. Raise StoreFailed if the disk fails."""
    for number in (1, 2):
        for path in former_files(paths, number):
            failpoint("format.before_removal")
            if path.is_dir():
                fileutil.remove_tree(path)
            else:
                fileutil.remove(path)
