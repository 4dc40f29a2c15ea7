"""Write the staged rows of a store into the folders of format 2."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.records.record import decode
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import chunk_name, decode_chunk, encode_chunk
from raymq.storage.tables.staged_records import CommitDecision


def kept_twice(value: list[Any]) -> bytes:
    """Return the content of a file that holds `value` twice."""
    return encode_frame(tuple(value)) * 2


def move_to_folders(store: Store) -> Path:
    """Move all transactions of a store to folders; return their parent."""
    table, root = store.tables.staged, store.directory / "raymq" / "staged"
    for name, known in table._transactions.copy().items():
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "home").write_bytes(kept_twice([known.coordinator]))
        if known.over is not None:
            missing = b"" if known.missing is None else msgpack.packb(list(known.missing))
            (folder / known.over).write_bytes(missing)
        for chunk in known.chunks.values():
            bodies = [decode(store.raw_many([offset], [size])).body for offset, size in chunk.places]
            rows = decode_chunk(b"".join(bodies), chunk_name(name, *chunk.key))
            place = (rows.topic, rows.queue_id), rows.records, rows.sizes, chunk.incarnation, chunk.topic_id
            path = folder / f"{chunk.part}.{chunk.number:06d}.chunk"
            path.write_bytes(encode_chunk(*place))
            if chunk.attempts:
                places = [-1 if place is None else place for attempt in chunk.attempts for place in attempt]
                path.with_suffix(".intent").write_bytes(struct.pack(f">{len(places)}q", *places))
            if chunk.done_at is not None:
                path.with_suffix(".done").write_bytes(done_mark(chunk.done_at))
            if chunk.lost is not None:
                path.with_suffix(".lost").write_bytes(msgpack.packb(list(chunk.lost)))
        if known.commit is not None and known.over is None:
            found = sum(chunk.rows for chunk in known.chunks.values())
            (folder / "commit").write_bytes(kept_twice(decision(known.commit, found)))
        table.remove(name)
    return root


def done_mark(log_end: int) -> bytes:
    """Return the content of the file of a chunk that is done."""
    return struct.pack(">qq", log_end, ~log_end)


def decision(commit: CommitDecision, found: int) -> list[Any]:
    """Return the value of the file of a decision."""
    ends = [[topic, queue_id, end] for (topic, queue_id), end in commit.ends.items()]
    content = [list(commit.parts), ends, commit.log_from, dict(commit.topic_ids), commit.uncertain_until]
    return [*content, found, commit.absent, {topic: list(each) for topic, each in commit.cut.items()}]
