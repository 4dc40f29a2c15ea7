"""Read the files of format 2 that are tables of the state journal now.

Format 2 had a state journal, and beside it a file for each of these tables. `state_opening` writes a snapshot with
their values, and removes the files. So a journal with a recovery epoch has the other values, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.files import fileutil, json_file
from raymq.storage.former_files import former_files
from raymq.storage.journal.journal_frames import decode_frames
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.counted_time import CountedTime
from raymq.storage.tables.delay_level_history import read_delay_tables
from raymq.storage.tables.dynamic_config import read_settings_events
from raymq.storage.tables.producer_states import lane_events, position_event
from raymq.storage.tables.quarantined_messages import QuarantinedMessages, QuarantineEntry
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from raymq.storage.tables.state_tables import StateTables

_log = logging.getLogger(__name__)


def read_events(paths: StorePaths, tables: StateTables) -> list[tuple[JournaledTable, Fields]]:
    """Return the former files' events; the last one begins the recovery epochs.

    Return nothing if there are no such files, or if the journal has their content. What is damaged is reported, and its
    spare copy is used, or it is left out.

    Raises:
        StoreCorrupt: the settings and their spare copy are unreadable.
        StoreBusy, StoreFailed: a file cannot be read (now).
    """
    if tables.recovery_epochs.is_begun or not former_files(paths, 2):
        return []
    own = paths.root / "raymq"
    events: list[tuple[JournaledTable, Fields]] = []
    events += [(tables.counted_time, fields) for fields in _counted_time(own / "counted_time.json")]
    events += [(tables.quarantined, fields) for fields in _quarantined(own / "set_aside.jsonl")]
    events += [(tables.settings, fields) for fields in read_settings_events(paths.settings)]
    if levels := read_delay_tables(paths.delay_levels):
        events.append((tables.delay_levels, (levels,)))
    events += [(tables.producer_states, fields) for fields in _producers(own / "producers.journal")]
    return [*events, (tables.recovery_epochs, _epochs(own / "epochs.json", tables.recovery_epochs))]


def _counted_time(path: Path) -> Iterator[Fields]:
    """Return the event of the counted time, if the file can be read."""
    try:
        fields = (float(json.loads(fileutil.read_whole(path))["seconds"]),)
        CountedTime().apply(fields)
    except FileNotFoundError:
        return
    except json_file.DECODE_ERRORS as error:
        _log.error("%s cannot be read, so the time begins at 0 again: %s", path, error)
        return
    yield fields


def _quarantined(path: Path) -> Iterator[Fields]:
    """Return the events of quarantined messages; leave out malformed lines."""
    table = QuarantinedMessages()
    for each in (path.with_name(f"{path.name}.older"), path):
        with contextlib.suppress(FileNotFoundError):
            for line in fileutil.read_whole(each).split(b"\n"):
                with contextlib.suppress(*json_file.DECODE_ERRORS):
                    saved = json.loads(line)
                    table.apply([[[saved[each.name] for each in dataclasses.fields(QuarantineEntry)]]])
    return table.snapshot()


def _producers(path: Path) -> Iterator[Fields]:
    """Return the events of producer states and of their log position.

    What is behind damage does not count: it does not say to which position of the log it belongs.
    """
    try:
        found = decode_frames(fileutil.read_whole(path))
    except FileNotFoundError:
        return
    for begin, end in found.damage:
        _log.error("%s: %d bytes at %d are not what was written; the log is read again", path, end - begin, begin)
    lanes: dict[tuple[Any, ...], list[Any]] = {}
    position = 0
    for kind, value in found.entries:
        if kind == "l":
            lanes.update({tuple(row[:3]): row for row in msgpack.unpackb(value)})
        elif kind == "p":
            position = int(value)
    yield from lane_events(lanes.values())
    yield position_event(position)


def _epochs(path: Path, table: RecoveryEpochs) -> Fields:
    """Return the event of the file's recovery epochs, else of a new one."""
    try:
        saved = json.loads(fileutil.read_whole(path))
        cuts = [(int(epoch), int(log_end)) for epoch, log_end in saved["cuts"]]
        current = int(saved["epoch"])
        # Older versions counted epochs: 1, 2, and so on.
        first = int(saved["first"]) if "first" in saved else cuts[0][0] - 1 if cuts else current
        if current != (cuts[-1][0] if cuts else first):
            raise ValueError(f"epoch {current} is not the last of its cuts")
        fields = first, cuts, int(saved.get("election", 0))  # RayMQ 0.1 had no elections
        RecoveryEpochs().apply(fields)
    except FileNotFoundError:
        return table.beginning()
    except json_file.DECODE_ERRORS as error:
        _log.error("%s cannot be read, so readers of this store read it again: %s", path, error)
        return table.beginning()
    return fields
