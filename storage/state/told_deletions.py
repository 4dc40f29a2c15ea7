"""Which topics were deleted, as the files of a store directory say: what a replica's queues have to agree with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from raymq.storage.files import fileutil, json_file
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.log.checkpoint import State, done
from raymq.storage.state.state_files import OURS
from raymq.storage.tables.journal import Journal


def files_of(directory: Path) -> list[Path]:
    """Those of the journal of deletions."""
    return [directory / OURS / f"deletions.journal{ending}" for ending in ("", ".beside", ".base")]


def sync(directory: Path) -> None:
    """Bring to disk what is told, before the queues' checkpoint says it."""
    for path in files_of(directory):
        sync_path(path)
    fileutil.sync_directory(directory / OURS)


def told(directory: Path) -> dict[str, int]:
    """Where the log ended when which topics were deleted, as the journal of deletions says. StoreBusy, StoreFailed."""
    return State().with_deletions(each_told(directory)).deleted_topics


def each_told(directory: Path) -> list[tuple[str, int]]:
    """As `told`, with those that the same topic had before."""
    journal = Journal(files_of(directory)[0], writable=False)
    return done((str(topic), int(place)) for topic, place in [*journal.entries, *journal.behind])


def compare(directory: Path, before: list[tuple[str, int]], log_min: int) -> tuple[list[str], list[tuple[str, int]]]:
    """What was known of deletions and is not told now; StoreBusy, StoreFailed.

    Args:
        before: what was told; what the queues' checkpoint tells counts, too.
        log_min: of the log there is nothing before this place: deletions from before it are not told any more.

    Returns:
        the topics that were never deleted; the other deletions.
    """
    now = told(directory)
    state = State.load(directory / OURS / "state.json")
    known = [*before, *(state.deleted_topics.items() if state is not None else ())]
    never = {topic for topic, place in known if place > max(log_min, now.get(topic, -1))}
    return sorted(never), [(topic, place) for topic, place in known if place <= log_min]


def save(path: Path, deletions: Iterable[tuple[str, int]]) -> None:
    """Keep what was told, durably, beside what is kept there already."""
    fileutil.replace(path, json.dumps(sorted({*load(path), *deletions})).encode())


def load(path: Path) -> list[tuple[str, int]]:
    """What is kept there; nothing where nothing can be read."""
    try:
        kept = json.loads(fileutil.read_whole(path))
        # Release 0.1.0 kept one deletion of each topic.
        return [(str(topic), int(place)) for topic, place in (kept.items() if isinstance(kept, dict) else kept)]
    except (FileNotFoundError, *json_file.ANOTHER_FORM):
        return []
