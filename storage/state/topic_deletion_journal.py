"""Read the topic deletions with which a replica's queues have to agree."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from raymq.storage.files import fileutil, json_file
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.log.checkpoint import CheckpointState, effective_deletions
from raymq.storage.state.state_files import RAYMQ_FOLDER
from raymq.storage.tables.journal import Journal


def files_of(directory: Path) -> list[Path]:
    """Return the files of the journal of deletions."""
    return [directory / RAYMQ_FOLDER / f"deletions.journal{ending}" for ending in ("", ".beside", ".base")]


def sync(directory: Path) -> None:
    """Bring the journal to disk, before the queues' checkpoint contains its deletions."""
    for path in files_of(directory):
        sync_path(path)
    fileutil.sync_directory(directory / RAYMQ_FOLDER)


def read_deleted_topics(directory: Path) -> dict[str, int]:
    """Return the log's end at the deletion of each topic in the journal.

    Raise StoreBusy or StoreFailed if the journal cannot be read now.
    """
    return CheckpointState().with_deletions(read_all_deletions(directory)).deleted_topics


def read_all_deletions(directory: Path) -> list[tuple[str, int]]:
    """Return all deletions of the journal, also earlier ones of the same topic."""
    journal = Journal(files_of(directory)[0], writable=False)
    return effective_deletions((str(topic), int(place)) for topic, place in [*journal.entries, *journal.behind])


def compare(directory: Path, before: list[tuple[str, int]], log_min: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Compare earlier known deletions with those now in the journal.

    Raise StoreBusy or StoreFailed if the journal cannot be read now.

    Args:
        before: the earlier deletions; those in the queues' checkpoint are added.
        log_min: the log's minimum: the journal no longer lists deletions from before it.

    Returns:
        the topics whose deletion was undone; the deletions from before `log_min`.
    """
    now = read_deleted_topics(directory)
    state = CheckpointState.load(directory / RAYMQ_FOLDER / "state.json")
    known = [*before, *(state.deleted_topics.items() if state is not None else ())]
    never = {topic for topic, place in known if place > max(log_min, now.get(topic, -1))}
    return sorted(never), [(topic, place) for topic, place in known if place <= log_min]


def save(path: Path, deletions: Iterable[tuple[str, int]]) -> None:
    """Save deletions durably, in addition to those already in the file."""
    fileutil.replace(path, json.dumps(sorted({*load(path), *deletions})).encode())


def load(path: Path) -> list[tuple[str, int]]:
    """Return the deletions in a file; nothing if it is missing or invalid."""
    try:
        saved = json.loads(fileutil.read_whole(path))
        # Release 0.1.0 kept one deletion of each topic.
        return [(str(topic), int(place)) for topic, place in (saved.items() if isinstance(saved, dict) else saved)]
    except (FileNotFoundError, *json_file.DECODE_ERRORS):
        return []
