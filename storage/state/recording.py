"""Where a master's changes of state are seen: file calls that tell each recorder what happens in its directory.

They stand in `file_calls.current` as long as there is a recorder. A broker with one copy has none, and its calls are
the plain ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from raymq.storage.errors import InvalidInput
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import FileCalls, WrappedCalls
from raymq.storage.state.changes import MOST_WRITTEN, FileChange, Operation
from raymq.storage.state.state_files import is_state


class Recorder(Protocol):
    """Who is told of a directory's changes."""

    @property
    def gives_way(self) -> bool:
        """Whether another one may take its place."""

    @property
    def is_doubtful(self) -> bool:
        """Whether what was there at the beginning may lack something."""

    def change(self, call: Callable[[], Any], told: Callable[[Any], FileChange | None]) -> Any:
        """Make a change by `call`, and number it; `told` says what it was by what the call returned, if it was any."""

    def moving(self, path: str) -> None:
        """Within a change, before it: the file or folder at this path is about to lose it."""

    def lose_count(self) -> None:
        """Within a change: what has changed cannot be told."""


class _Opened:
    """An open file of a recorder's directory; `path` follows its names, None: it has none any more."""

    __slots__ = ("appends", "path", "recorder")

    def __init__(self, recorder: Recorder, path: str, *, appends: bool) -> None:
        self.recorder = recorder
        self.path: str | None = path
        self.appends = appends


class RecordingCalls(WrappedCalls):
    """The calls of before, and those on state files told; any thread."""

    def __init__(self, real: FileCalls) -> None:
        super().__init__(real)
        #: By the path of the directory, with a slash.
        self.recorders: dict[str, Recorder] = {}
        #: Descriptors of state files that may be written. Files are closed past this seam; a number that is given again
        #: is entered anew, for whoever writes has opened here.
        self._fds: dict[int, _Opened] = {}

    def _of(self, path: Path) -> tuple[Recorder, str] | None:
        text = os.fspath(path)
        if not text.startswith("/"):
            text = os.path.abspath(text)
        for prefix, recorder in self.recorders.items():
            if text.startswith(prefix) and is_state(relative := text[len(prefix) :]):
                return recorder, relative
        return None

    def open(self, path: Path, flags: int) -> int:
        found = self._of(path) if flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) else None
        if found is None:
            fd = self.real.open(path, flags)
            self._fds.pop(fd, None)
            return fd
        recorder, relative = found
        if not flags & (os.O_CREAT | os.O_TRUNC):
            fd = self.real.open(path, flags)
        else:
            empties = bool(flags & os.O_TRUNC)

            def opened() -> tuple[int, bool]:
                is_told = empties or not os.path.lexists(path)
                return self.real.open(path, flags), is_told

            fd, _ = recorder.change(
                opened, lambda made: FileChange(Operation.CREATED, relative, empty=empties) if made[1] else None
            )
        self._fds[fd] = _Opened(recorder, relative, appends=bool(flags & os.O_APPEND))
        return fd

    def write(self, fd: int, content: bytes | memoryview) -> int:
        known = self._fds.get(fd)
        if known is None:
            return self.real.write(fd, content)
        part = memoryview(content)[:MOST_WRITTEN]

        def told(written: int) -> FileChange | None:
            path = known.path
            if not written or path is None:
                return None
            at = os.lseek(fd, 0, os.SEEK_CUR) - written
            operation = Operation.APPENDED if known.appends else Operation.WRITTEN
            return FileChange(operation, path, at=at, content=bytes(part[:written]))

        written: int = known.recorder.change(lambda: self.real.write(fd, part), told)
        return written

    def truncate(self, fd: int, size: int) -> None:
        known = self._fds.get(fd)
        if known is None:
            self.real.truncate(fd, size)
            return

        def told(_: None) -> FileChange | None:
            return None if known.path is None else FileChange(Operation.TRUNCATED, known.path, at=size)

        known.recorder.change(lambda: self.real.truncate(fd, size), told)

    def rename(self, source: Path, target: Path) -> None:
        came, goes = self._of(source), self._of(target)
        if came is None and goes is None:
            self.real.rename(source, target)
        elif came is not None and goes is not None and came[0] is goes[0]:
            self._rename(source, target, came[0], came[1], goes[1])
        else:
            # State becomes a broker's own, or the other way round: replicas take a snapshot.
            for each in (came, goes):
                if each is not None:
                    each[0].change(each[0].lose_count, lambda _: None)
            self.real.rename(source, target)

    def _rename(self, source: Path, target: Path, recorder: Recorder, came: str, goes: str) -> None:
        def renamed() -> None:
            recorder.moving(came)
            recorder.moving(goes)
            self.real.rename(source, target)
            self._moved(recorder, goes, None)
            self._moved(recorder, came, goes)

        recorder.change(renamed, lambda _: FileChange(Operation.RENAMED, came, target=goes))

    def _moved(self, recorder: Recorder, path: str, to: str | None) -> None:
        """What is open of that path, or in it, has another one; None: it has none any more."""
        for opened in self._fds.copy().values():
            name = opened.path
            if opened.recorder is recorder and name is not None and (name == path or name.startswith(f"{path}/")):
                opened.path = None if to is None else to + name[len(path) :]

    def unlink(self, path: Path) -> None:
        found = self._of(path)
        if found is None:
            self.real.unlink(path)
            return
        recorder, relative = found

        def unlinked() -> None:
            recorder.moving(relative)
            self.real.unlink(path)
            self._moved(recorder, relative, None)

        recorder.change(unlinked, lambda _: FileChange(Operation.UNLINKED, relative))

    def make_folder(self, path: Path) -> None:
        self._folder(path, self.real.make_folder, Operation.FOLDER_MADE)

    def remove_folder(self, path: Path) -> None:
        self._folder(path, self.real.remove_folder, Operation.FOLDER_REMOVED)

    def _folder(self, path: Path, call: Callable[[Path], None], operation: Operation) -> None:
        found = self._of(path)
        if found is None:
            call(path)
            return
        recorder, relative = found
        recorder.change(lambda: call(path), lambda _: FileChange(operation, relative))

    def duplicate(self, fd: int) -> int:
        other = self.real.duplicate(fd)
        self._fds.pop(other, None)
        return other


_installing: Final = threading.Lock()


def prefix_of(directory: Path) -> str:
    """By which paths in a directory begin."""
    return os.path.join(os.path.abspath(directory), "")


def install(directory: Path, recorder: Recorder) -> None:
    """Tell a recorder of a directory's changes from now on; InvalidInput: another one is, and does not give way."""
    with _installing:
        calls = file_calls.current
        if not isinstance(calls, RecordingCalls):
            calls = RecordingCalls(calls)
        before = calls.recorders.get(prefix_of(directory))
        if before is not None and not before.gives_way:
            raise InvalidInput("directory", "one that nobody records", str(directory))
        calls.recorders = {**calls.recorders, prefix_of(directory): recorder}
        file_calls.current = calls


def uninstall(recorder: Recorder) -> None:
    """Tell it nothing any more; another one that has taken its place is told as before."""
    with _installing:
        calls = file_calls.current
        if isinstance(calls, RecordingCalls):
            calls.recorders = {key: each for key, each in calls.recorders.items() if each is not recorder}
            if not calls.recorders:
                file_calls.current = calls.real


def insert(make: Callable[[FileCalls], FileCalls]) -> FileCalls:
    """Have other calls between the recorders, if there are any, and the system's; `remove` takes them out again."""
    with _installing:
        calls = file_calls.current
        if isinstance(calls, RecordingCalls):
            calls.real = made = make(calls.real)
        else:
            file_calls.current = made = make(calls)
    return made


def remove(calls: FileCalls) -> None:
    """Take out what `insert` has made, which has what is below it as `real`. Calls that have begun end as they did."""
    with _installing:
        below, above = getattr(calls, "real", calls), file_calls.current
        if above is calls:
            file_calls.current = below
            return
        while (under := getattr(above, "real", None)) is not None:
            if under is calls:
                setattr(above, "real", below)  # noqa: B010 - whoever it is, it has that
                return
            above = under


def recorder_of(directory: Path) -> Recorder | None:
    """Who is told of the changes of a directory's state now; None: nobody."""
    calls = file_calls.current
    return calls.recorders.get(prefix_of(directory)) if isinstance(calls, RecordingCalls) else None
