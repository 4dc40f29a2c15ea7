"""The state file of the timer log.

It names the files of the timer log, and the offsets up to which they cover the commit log. raymq/timers/state.json is
replaced as a whole:

    {"version":3,"position":{"enqueued":N,"logEnd":M,"begin":MS,"over":MS,"overs":[[MS,offset,log end],...]},
     "journal":K,"lengths":{number:bytes},"runs":[[number,entries,ended,last physical offset,CRC],...],"crc":CRC}

Files that it does not name, and journals older than K, are not needed any more. `lengths` is how many bytes of each
journal were on disk then.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from raymq.storage.errors import FormatTooNew
from raymq.storage.files import fileutil, json_file
from raymq.storage.timers.expiry_watermark import ExpiryWatermark
from raymq.storage.timers.timer_entry import ENTRY, NO_ENTRIES, Entries, min_due_ms, sort_entries
from raymq.storage.timers.timer_run import RunMetadata, write_run

_VERSION: Final = 3
#: The version whose journals had only entries, without checksums.
_WITHOUT_CHECKSUMS: Final = 2
_JOURNAL: Final = "journal."
_RUN: Final = "run."


@dataclass(frozen=True, slots=True)
class TimerState:
    """The content of the state file; see the module docstring and `TimerLog`."""

    enqueued: int = 0
    log_end: int = 0
    begin_ms: int = 0
    expired_before_ms: int = 0
    journal: int = 0
    runs: Sequence[RunMetadata] = ()
    #: The length of each journal in bytes, by its number.
    lengths: Mapping[int, int] = field(default_factory=dict)
    overs: Sequence[ExpiryWatermark] = ()

    def save(self, folder: Path) -> None:
        """Replace the saved state durably. Raise StoreFull or StoreFailed if that fails."""
        runs = [[run.number, run.entries, run.ended, run.last_physical_offset, run.crc] for run in self.runs]
        position: dict[str, Any] = {"enqueued": self.enqueued, "logEnd": self.log_end, "begin": self.begin_ms}
        position |= {"over": self.expired_before_ms, "overs": [list(over) for over in self.overs]}
        lengths = {str(number): length for number, length in self.lengths.items()}
        content = {"version": _VERSION, "position": position, "journal": self.journal, "runs": runs, "lengths": lengths}
        content["crc"] = _crc(content)
        fileutil.replace(_state_path(folder), json.dumps(content).encode())


def load(folder: Path) -> TimerState | None:
    """Return the saved state, None if it cannot be read; convert older versions.

    Files and journals of older versions become a run.

    Raises:
        FormatTooNew: a newer RayMQ wrote it.
        StoreFull, StoreFailed: it cannot be read or converted.
    """
    path = _state_path(folder)
    try:
        content = json.loads(fileutil.read_whole(path))
        if "version" not in content:
            return _take_over(folder, int(content["enqueued"]), int(content["logEnd"]))
        if content["version"] not in (_WITHOUT_CHECKSUMS, _VERSION):
            raise FormatTooNew(str(path), int(content["version"]), _VERSION)
        crc = content.pop("crc", None if content["version"] == _WITHOUT_CHECKSUMS else -1)
        if crc not in (None, _crc(content)):
            return None
        return _read(content) if content["version"] == _VERSION else _take_over_journals(folder, content)
    except FileNotFoundError:
        return _take_over(folder, 0, 0)
    except json_file.DECODE_ERRORS:
        return None


def peek(folder: Path) -> TimerState | None:
    """Return the saved state without writing anything.

    Return None if there is none, if it cannot be read, or if another version wrote it.

    Raises:
        StoreBusy, StoreFailed: it cannot be read now.
    """
    try:
        content = json.loads(fileutil.read_whole(_state_path(folder)))
        is_whole = content.pop("crc", -1) == _crc(content) and content.get("version") == _VERSION
        return _read(content) if is_whole else None
    except (FileNotFoundError, *json_file.DECODE_ERRORS):
        return None


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def reset_state(folder: Path) -> TimerState:
    """Save and return an empty state, and remove the old files.

    The timer log is then rebuilt from the commit log. Raise StoreFull or StoreFailed if the state cannot be written.
    """
    state = TimerState(journal=1 + max(journals(folder, 0), default=0))
    state.save(folder)
    remove_unused_files(folder, [], state.journal)
    return state


def _read(content: dict[str, Any]) -> TimerState:
    position = content["position"]
    return TimerState(
        int(position["enqueued"]),
        int(position["logEnd"]),
        int(position["begin"]),
        int(position["over"]),
        int(content["journal"]),
        [RunMetadata(*map(int, run)) for run in content["runs"]],
        {int(number): int(length) for number, length in content.get("lengths", {}).items()},
        [ExpiryWatermark(*map(int, over)) for over in position.get("overs", ())],
    )


def _take_over_journals(folder: Path, raw: dict[str, Any]) -> TimerState:
    """Convert the journals of version 2 to a run, and return the state.

    Entries from after the saved state are rebuilt from the commit log.
    """
    state, cut = _read(raw), "lengths" in raw
    found = journals(folder, state.journal)
    contents = [
        fileutil.read_whole(path)[: state.lengths.get(number, 0) if cut else None] for number, path in found.items()
    ]
    parts = [np.frombuffer(content, ENTRY, len(content) // ENTRY.itemsize) for content in contents]
    entries = sort_entries(np.concatenate([NO_ENTRIES, *parts]).astype(ENTRY))
    number = 1 + max([state.journal, *found, *(metadata.number for metadata in state.runs)])
    run = write_run(folder, number, [entries])
    taken = replace(
        state,
        begin_ms=min_due_ms(entries, state.begin_ms),
        journal=number + 1,
        runs=[*state.runs, *([] if run is None else [run.metadata])],
        lengths={},
    )
    taken.save(folder)
    return taken


def _take_over(folder: Path, enqueued: int, log_end: int) -> TimerState:
    """Convert the files of version 1 to a run, and return the state.

    Version 1 had one file of entries for each hour in which a message was due, named by the hour.
    """
    hours = _hours(folder)
    if not hours:
        return TimerState(enqueued, log_end)
    run = write_run(folder, 1, (_read_hour(path) for path in hours))
    # Hours that had passed when the state was written had no file any more.
    expired_before_ms = int(_state_path(folder).stat().st_mtime * 1000) if enqueued else 0
    state = TimerState(enqueued, log_end, 0, expired_before_ms, 2, [] if run is None else [run.metadata])
    state.save(folder)
    return state


def _hours(folder: Path) -> list[Path]:
    return [path for path in fileutil.paths_in(folder) if path.name.isdecimal()]


def _read_hour(path: Path) -> Entries:
    content = fileutil.read_whole(path)
    return sort_entries(np.frombuffer(content, ENTRY, len(content) // ENTRY.itemsize))


def journals(folder: Path, first: int) -> dict[int, Path]:
    """Return the journals' paths from number `first` on, in ascending order."""
    found = {
        int(path.name[len(_JOURNAL) :]): path
        for path in fileutil.paths_in(folder)
        if path.name.startswith(_JOURNAL) and path.name[len(_JOURNAL) :].isdecimal()
    }
    return {number: found[number] for number in sorted(found) if number >= first}


def journal_path(folder: Path, number: int) -> Path:
    """Return the path of a journal's file."""
    return folder / f"{_JOURNAL}{number:010d}"


def remove_unused_files(folder: Path, runs: Collection[Path], first_journal: int) -> None:
    """Remove the files that the state does not name, which has to be on disk."""
    needed = {*runs, *journals(folder, first_journal).values()}
    for path in fileutil.paths_in(folder):
        is_ours = path.name.startswith((_RUN, _JOURNAL)) or path.name.isdecimal()
        if is_ours and path not in needed:
            fileutil.remove(path)


def _state_path(folder: Path) -> Path:
    return folder / "state.json"
