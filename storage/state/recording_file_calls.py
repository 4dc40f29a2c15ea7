"""File calls that report each change of state files to the recorder of their directory.

They are installed in `file_calls.current` while there is a recorder. A broker without replicas has no recorder, and
uses the plain calls.
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
from raymq.storage.state.state_changes import MAX_WRITE_BYTES, FileChange, FileOperation
from raymq.storage.state.state_files import is_state


class ChangeRecorder(Protocol):
    """Receives the changes of a directory's state files."""

    @property
    def is_replaceable(self) -> bool:
        """Return True if another recorder may take its place."""

    @property
    def is_stale(self) -> bool:
        """Return True if the state may have lacked something when recording began."""

    def change(self, call: Callable[[], Any], change_of: Callable[[Any], FileChange | None]) -> Any:
        """Run `call`, which may change a file, and number the change.

        `change_of` returns the change for the result of `call`, or None if there was no change.
        """

    def before_rename(self, path: str) -> None:
        """Save the file or folder at this path, which is about to lose the path.

        It is called within a change, before the change is made.
        """

    def invalidate_numbers(self) -> None:
        """Invalidate the numbers within a change, because the change cannot be described."""


class _Opened:
    """An open file of a recorder's directory.

    `path` follows renames of the file; None: the file has no path any more.
    """

    __slots__ = ("appends", "path", "recorder")

    def __init__(self, recorder: ChangeRecorder, path: str, *, appends: bool) -> None:
        self.recorder = recorder
        self.path: str | None = path
        self.appends = appends


class RecordingFileCalls(WrappedCalls):
    """File calls that report the changes of state files; any thread."""

    def __init__(self, real: FileCalls) -> None:
        super().__init__(real)
        #: Recorders by the path of their directory, with a slash at the end.
        self.recorders: dict[str, ChangeRecorder] = {}
        #: Descriptors of state files that may be written. Closing does not pass through here, but a reused descriptor
        #: is entered anew, because every file that is written is also opened here.
        self._fds: dict[int, _Opened] = {}

    def _of(self, path: Path) -> tuple[ChangeRecorder, str] | None:
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
                is_change = empties or not os.path.lexists(path)
                return self.real.open(path, flags), is_change

            fd, _ = recorder.change(
                opened,
                lambda opened_file: (
                    FileChange(FileOperation.CREATED, relative, empty=empties) if opened_file[1] else None
                ),
            )
        self._fds[fd] = _Opened(recorder, relative, appends=bool(flags & os.O_APPEND))
        return fd

    def write(self, fd: int, content: bytes | memoryview) -> int:
        known = self._fds.get(fd)
        if known is None:
            return self.real.write(fd, content)
        part = memoryview(content)[:MAX_WRITE_BYTES]

        def as_change(written: int) -> FileChange | None:
            path = known.path
            if not written or path is None:
                return None
            at = os.lseek(fd, 0, os.SEEK_CUR) - written
            operation = FileOperation.APPENDED if known.appends else FileOperation.WRITTEN
            return FileChange(operation, path, at=at, content=bytes(part[:written]))

        written: int = known.recorder.change(lambda: self.real.write(fd, part), as_change)
        return written

    def truncate(self, fd: int, size: int) -> None:
        known = self._fds.get(fd)
        if known is None:
            self.real.truncate(fd, size)
            return

        def as_change(_: None) -> FileChange | None:
            return None if known.path is None else FileChange(FileOperation.TRUNCATED, known.path, at=size)

        known.recorder.change(lambda: self.real.truncate(fd, size), as_change)

    def rename(self, source: Path, target: Path) -> None:
        came, goes = self._of(source), self._of(target)
        if came is None and goes is None:
            self.real.rename(source, target)
        elif came is not None and goes is not None and came[0] is goes[0]:
            self._rename(source, target, came[0], came[1], goes[1])
        else:
            # A state file becomes local to the broker, or the other way round: replicas take a snapshot.
            for each in (came, goes):
                if each is not None:
                    each[0].change(each[0].invalidate_numbers, lambda _: None)
            self.real.rename(source, target)

    def _rename(self, source: Path, target: Path, recorder: ChangeRecorder, came: str, goes: str) -> None:
        def renamed() -> None:
            recorder.before_rename(came)
            recorder.before_rename(goes)
            self.real.rename(source, target)
            self._moved(recorder, goes, None)
            self._moved(recorder, came, goes)

        recorder.change(renamed, lambda _: FileChange(FileOperation.RENAMED, came, target=goes))

    def _moved(self, recorder: ChangeRecorder, path: str, to: str | None) -> None:
        """Change the paths of open files at or below `path` after a rename.

        With None they have no path any more.
        """
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
            recorder.before_rename(relative)
            self.real.unlink(path)
            self._moved(recorder, relative, None)

        recorder.change(unlinked, lambda _: FileChange(FileOperation.UNLINKED, relative))

    def make_folder(self, path: Path) -> None:
        self._folder(path, self.real.make_folder, FileOperation.FOLDER_MADE)

    def remove_folder(self, path: Path) -> None:
        self._folder(path, self.real.remove_folder, FileOperation.FOLDER_REMOVED)

    def _folder(self, path: Path, call: Callable[[Path], None], operation: FileOperation) -> None:
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


def path_prefix(directory: Path) -> str:
    """Return the prefix of all absolute paths in a directory."""
    return os.path.join(os.path.abspath(directory), "")


def install_recorder(directory: Path, recorder: ChangeRecorder) -> None:
    """Report a directory's changes to a recorder from now on.

    Raise InvalidInput if the directory has another recorder that may not be replaced.
    """
    with _installing:
        calls = file_calls.current
        if not isinstance(calls, RecordingFileCalls):
            calls = RecordingFileCalls(calls)
        before = calls.recorders.get(path_prefix(directory))
        if before is not None and not before.is_replaceable:
            raise InvalidInput("directory", "a directory without a recorder", str(directory))
        calls.recorders = {**calls.recorders, path_prefix(directory): recorder}
        file_calls.current = calls


def uninstall_recorder(recorder: ChangeRecorder) -> None:
    """Report no further changes to a recorder; another one that has replaced it stays."""
    with _installing:
        calls = file_calls.current
        if isinstance(calls, RecordingFileCalls):
            calls.recorders = {key: each for key, each in calls.recorders.items() if each is not recorder}
            if not calls.recorders:
                file_calls.current = calls.real


def insert_calls(make: Callable[[FileCalls], FileCalls]) -> FileCalls:
    """Insert other calls between the recorders and the system's calls, and return them.

    `remove_calls` removes them.
    """
    with _installing:
        calls = file_calls.current
        if isinstance(calls, RecordingFileCalls):
            calls.real = inserted = make(calls.real)
        else:
            file_calls.current = inserted = make(calls)
    return inserted


def remove_calls(calls: FileCalls) -> None:
    """Remove the calls that `insert_calls` inserted; calls under way finish unchanged.

    The removed calls have the calls below them as `real`.
    """
    with _installing:
        below, above = getattr(calls, "real", calls), file_calls.current
        if above is calls:
            file_calls.current = below
            return
        while (under := getattr(above, "real", None)) is not None:
            if under is calls:
                setattr(above, "real", below)  # noqa: B010 - every wrapper has this attribute
                return
            above = under


def current_recorder(directory: Path) -> ChangeRecorder | None:
    """Return the recorder of a directory's state, None if there is none."""
    calls = file_calls.current
    return calls.recorders.get(path_prefix(directory)) if isinstance(calls, RecordingFileCalls) else None
