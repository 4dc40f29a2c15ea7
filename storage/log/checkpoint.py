"""Save what a restart may rely on: RocketMQ's checkpoint and RayMQ's `raymq/state.json`.

The checkpoint holds store times, from which RocketMQ derives where to begin. RayMQ's state is exact: the log up to
`dispatched_to` is on disk, together with its queue entries and index entries; how far each queue and the index reached;
the sizes of the files; deleted topics; and during which boot of the machine the store was open, because a crash of the
process loses nothing in memory-mapped files, while a crash of the machine does.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raymq.storage.files import fileutil, json_file

CHECKPOINT_BYTES: Final = 4096
#: In place of the log's end: the deletion listed before it was not done. Older versions recorded it that way.
REVOKED: Final = -1
#: physical time, logic time, index time, master's flushed offset, confirm offset.
_LONGS = struct.Struct(">5q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The store times (ms) up to which data are surely on disk.

    They are those of the log, the queues, and the full index files; 0 = nothing known.
    """

    physical_ms: int = 0
    logic_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Load the checkpoint at `path`; all 0 if it is missing or too short."""
        try:
            content = fileutil.read_whole(path)
        except FileNotFoundError:
            return cls()
        return cls(*_LONGS.unpack_from(content)) if len(content) >= _LONGS.size else cls()

    def save(self, path: Path) -> None:
        """Write the checkpoint durably."""
        longs = _LONGS.pack(
            self.physical_ms, self.logic_ms, self.index_ms, self.master_flushed_offset, self.confirm_offset
        )
        fileutil.replace(path, longs.ljust(CHECKPOINT_BYTES, b"\0"))


@dataclass(frozen=True, slots=True)
class IndexExtent:
    """How far the index reached: the headers of its files by their names, ascending.

    A header is begin time, end time, begin physical offset, end physical offset, used slots, number of the next entry.
    """

    files: dict[str, tuple[int, int, int, int, int, int]]

    @property
    def end_ms(self) -> int:
        """Return the store time of the newest record; 0 if there is none."""
        return max((header[1] for header in self.files.values()), default=0)

    @property
    def end_physical(self) -> int:
        """Return the physical offset of the newest record; -1 if there is none."""
        return max((header[3] for header in self.files.values()), default=-1)


@dataclass(slots=True)
class CheckpointState:
    """RayMQ's own checkpoint; see the module.

    `index` is None if its extent was not saved; `walk_from` is 0 if no position was saved. `boot_ms` is the wall time
    in ms at the machine's start `boot`, as the retention clock has it; None: unknown.
    """

    dispatched_to: int = 0
    indexed_to: int = -1
    index: IndexExtent | None = None
    queues: dict[str, dict[int, int]] = field(default_factory=dict)
    deleted_topics: dict[str, int] = field(default_factory=dict)
    geometry: dict[str, int] = field(default_factory=dict)
    boot: str = ""
    walk_from: int = 0
    boot_ms: int | None = None

    @classmethod
    def load(cls, path: Path) -> CheckpointState | None:
        """Load the state at `path`; None if it is missing or damaged.

        Without a state, everything is derived from the log.

        Raises:
            StoreBusy, StoreFailed: it cannot be read now.
        """
        try:
            raw = json.loads(fileutil.read_whole(path).decode("utf-8"))
            if raw.pop("crc", None) not in (None, zlib.crc32(json.dumps(raw).encode())):
                return None
            return cls(
                dispatched_to=int(raw["dispatched_to"]),
                indexed_to=int(raw["indexed_to"]),
                index=_index_extent(raw.get("index")),
                queues={t: {int(q): int(m) for q, m in queues.items()} for t, queues in raw["queues"].items()},
                deleted_topics={t: int(p) for t, p in raw["deleted_topics"].items()},
                geometry={k: int(v) for k, v in raw["geometry"].items()},
                boot=str(raw["boot"]),
                walk_from=int(raw.get("walk_from", 0)),
                boot_ms=None if raw.get("boot_ms") is None else int(raw["boot_ms"]),
            )
        except (FileNotFoundError, *json_file.DECODE_ERRORS):
            return None

    def with_deletions(self, deletions: Iterable[tuple[str, int]], *, replaces: bool = False) -> CheckpointState:
        """Return a copy with deleted topics, each given with the log's end at its deletion.

        Args:
            replaces: these ends count, also where this checkpoint has a later one.
        """
        queues, deleted = dict(self.queues), dict(self.deleted_topics)
        for topic, log_end in effective_deletions(deletions):
            deleted[topic] = log_end if replaces else max(log_end, deleted.get(topic, 0))
            if log_end >= self.dispatched_to:  # Otherwise these are queues of a recreated topic.
                queues.pop(topic, None)
        return replace(self, queues=queues, deleted_topics=deleted)

    def save(self, path: Path) -> None:
        """Write the state durably.

        It is encoded in pieces, because encoding many queues at once would block all other threads of the interpreter.
        """
        content = {
            "dispatched_to": self.dispatched_to,
            "indexed_to": self.indexed_to,
            "index": None if self.index is None else asdict(self.index),
            "deleted_topics": self.deleted_topics,
            "geometry": self.geometry,
            "boot": self.boot,
            "walk_from": self.walk_from,
            "boot_ms": self.boot_ms,
        }
        queues = ", ".join([f"{json.dumps(topic)}: {json.dumps(offsets)}" for topic, offsets in self.queues.items()])
        fileutil.make_folder(path.parent)
        text = f'{json.dumps(content)[:-1]}, "queues": {{{queues}}}'
        crc = zlib.crc32(f"{text}}}".encode())
        fileutil.replace(path, f'{text}, "crc": {crc}}}'.encode())


def _index_extent(raw: Any) -> IndexExtent | None:
    if raw is None:
        return None
    files: dict[str, tuple[int, int, int, int, int, int]] = {}
    for name, header in raw["files"].items():
        begin_ms, end_ms, begin_physical, end_physical, used_slots, count = map(int, header)
        files[str(name)] = (begin_ms, end_ms, begin_physical, end_physical, used_slots, count)
    return IndexExtent(files)


def effective_deletions(deletions: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the deletions that were not revoked."""
    found: list[tuple[str, int]] = []
    for topic, log_end in deletions:
        if log_end != REVOKED:
            found.append((topic, log_end))
        elif found:
            found.pop()  # the deletion listed right before
    return found
