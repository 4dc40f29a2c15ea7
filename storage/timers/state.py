"""What the timer log says of itself: which files it is made of, and up to where they hold what the log has.

raymq/timers/state.json, replaced as a whole: `{"version":3,"position":{"enqueued":N,"logEnd":M,"begin":MS,
"over":MS,"overs":[[MS,offset,log end],...]},"journal":K,"lengths":{number:bytes},
"runs":[[number,entries,ended,last place,CRC],...],"crc":CRC}`. Files
that it does not name, and journals older than K, are not needed any more. `lengths` is how much of each journal was on
disk then.
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
from raymq.storage.timers.entry import ENTRY, NO_ENTRIES, Entries, in_order, least_due_ms
from raymq.storage.timers.over import Over
from raymq.storage.timers.run import RunShape, write_run

_VERSION: Final = 3
#: Its journals were entries alone, without a checksum.
_WITHOUT_CHECKSUMS: Final = 2
_JOURNAL: Final = "journal."
_RUN: Final = "run."


@dataclass(frozen=True, slots=True)
class TimerState:
    """See this file's first lines and `TimerLog`."""

    enqueued: int = 0
    log_end: int = 0
    begin_ms: int = 0
    over_ms: int = 0
    journal: int = 0
    runs: Sequence[RunShape] = ()
    #: By journal.
    lengths: Mapping[int, int] = field(default_factory=dict)
    overs: Sequence[Over] = ()

    def save(self, folder: Path) -> None:
        """Replace what was said before; it is on disk when this returns. StoreFull, StoreFailed: not done."""
        runs = [[run.number, run.entries, run.ended, run.last_place, run.crc] for run in self.runs]
        position: dict[str, Any] = {"enqueued": self.enqueued, "logEnd": self.log_end, "begin": self.begin_ms}
        position |= {"over": self.over_ms, "overs": [list(over) for over in self.overs]}
        lengths = {str(number): length for number, length in self.lengths.items()}
        told = {"version": _VERSION, "position": position, "journal": self.journal, "runs": runs, "lengths": lengths}
        told["crc"] = _crc(told)
        fileutil.replace(_state_path(folder), json.dumps(told).encode())


def load(folder: Path) -> TimerState | None:
    """What was said last, None if that cannot be read any more; files and journals of older versions become a run.

    Raises:
        FormatTooNew: a newer RayMQ wrote it. StoreFull, StoreFailed.
    """
    path = _state_path(folder)
    try:
        told = json.loads(fileutil.read_whole(path))
        if "version" not in told:
            return _take_over(folder, int(told["enqueued"]), int(told["logEnd"]))
        if told["version"] not in (_WITHOUT_CHECKSUMS, _VERSION):
            raise FormatTooNew(str(path), int(told["version"]), _VERSION)
        crc = told.pop("crc", None if told["version"] == _WITHOUT_CHECKSUMS else -1)
        if crc not in (None, _crc(told)):
            return None
        return _read(told) if told["version"] == _VERSION else _take_over_journals(folder, told)
    except FileNotFoundError:
        return _take_over(folder, 0, 0)
    except json_file.ANOTHER_FORM:
        return None


def peek(folder: Path) -> TimerState | None:
    """What was said last, and nothing is written; None if nothing was, or it cannot be read, or another version did.

    Raises:
        StoreBusy, StoreFailed: it cannot be read now.
    """
    try:
        told = json.loads(fileutil.read_whole(_state_path(folder)))
        is_whole = told.pop("crc", -1) == _crc(told) and told.get("version") == _VERSION
        return _read(told) if is_whole else None
    except (FileNotFoundError, *json_file.ANOTHER_FORM):
        return None


def _crc(told: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(told).encode())


def begin_anew(folder: Path) -> TimerState:
    """Forget all that is told there: it is made again from the log. StoreFull, StoreFailed."""
    state = TimerState(journal=1 + max(journals(folder, 0), default=0))
    state.save(folder)
    tidy(folder, [], state.journal)
    return state


def _read(told: dict[str, Any]) -> TimerState:
    position = told["position"]
    return TimerState(
        int(position["enqueued"]),
        int(position["logEnd"]),
        int(position["begin"]),
        int(position["over"]),
        int(told["journal"]),
        [RunShape(*map(int, run)) for run in told["runs"]],
        {int(number): int(length) for number, length in told.get("lengths", {}).items()},
        [Over(*map(int, over)) for over in position.get("overs", ())],
    )


def _take_over_journals(folder: Path, told: dict[str, Any]) -> TimerState:
    """The second version's journals become a run; of what came since the state was written all is told anew."""
    state, cut = _read(told), "lengths" in told
    found = journals(folder, state.journal)
    contents = [
        fileutil.read_whole(path)[: state.lengths.get(number, 0) if cut else None] for number, path in found.items()
    ]
    parts = [np.frombuffer(content, ENTRY, len(content) // ENTRY.itemsize) for content in contents]
    entries = in_order(np.concatenate([NO_ENTRIES, *parts]).astype(ENTRY))
    number = 1 + max([state.journal, *found, *(shape.number for shape in state.runs)])
    run = write_run(folder, number, [entries])
    taken = replace(
        state,
        begin_ms=least_due_ms(entries, state.begin_ms),
        journal=number + 1,
        runs=[*state.runs, *([] if run is None else [run.shape])],
        lengths={},
    )
    taken.save(folder)
    return taken


def _take_over(folder: Path, enqueued: int, log_end: int) -> TimerState:
    """The first version had a file of entries for each hour in which something was due, named by the hour."""
    hours = _hours(folder)
    if not hours:
        return TimerState(enqueued, log_end)
    run = write_run(folder, 1, (_read_hour(path) for path in hours))
    # Hours that were over when the state was written had no file any more.
    over_ms = int(_state_path(folder).stat().st_mtime * 1000) if enqueued else 0
    state = TimerState(enqueued, log_end, 0, over_ms, 2, [] if run is None else [run.shape])
    state.save(folder)
    return state


def _hours(folder: Path) -> list[Path]:
    return [path for path in fileutil.paths_in(folder) if path.name.isdecimal()]


def _read_hour(path: Path) -> Entries:
    content = fileutil.read_whole(path)
    return in_order(np.frombuffer(content, ENTRY, len(content) // ENTRY.itemsize))


def journals(folder: Path, first: int) -> dict[int, Path]:
    """The journals from that number on, in their order."""
    found = {
        int(path.name[len(_JOURNAL) :]): path
        for path in fileutil.paths_in(folder)
        if path.name.startswith(_JOURNAL) and path.name[len(_JOURNAL) :].isdecimal()
    }
    return {number: found[number] for number in sorted(found) if number >= first}


def journal_path(folder: Path, number: int) -> Path:
    """The file of a journal."""
    return folder / f"{_JOURNAL}{number:010d}"


def tidy(folder: Path, runs: Collection[Path], first_journal: int) -> None:
    """Remove the files that a state with these runs and journals, which is on disk, does not name."""
    needed = {*runs, *journals(folder, first_journal).values()}
    for path in fileutil.paths_in(folder):
        is_ours = path.name.startswith((_RUN, _JOURNAL)) or path.name.isdecimal()
        if is_ours and path not in needed:
            fileutil.remove(path)


def _state_path(folder: Path) -> Path:
    return folder / "state.json"
