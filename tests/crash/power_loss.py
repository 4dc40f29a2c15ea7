"""Simulate power loss: what was synced is on disk, and of the rest a random part.

`Disk` replaces the file calls of a store. At each sync of a file it keeps a copy of the file's bytes, at each sync of a
folder the folder's names. `Disk.after_power_loss` makes a directory as the next boot would find it: synced names and
bytes, and of unsynced ones a random choice, page by page and folder by folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from raymq.storage.files.file_calls import FileCalls

PAGE_BYTES = 512  # Less than a memory page: more possible torn writes with less data.


class Disk(FileCalls):
    """Real calls that record what was synced below `root`, instead of syncing it.

    `before_sync` is called before each sync: at that moment all that the sync would write may still be lost.

    A sync may fail (`fail_at`) as on Linux: the file's changed pages then count as written although they are not,
    and the next sync writes only later changes.
    """

    def __init__(self, root: Path, fail_at: int = 0) -> None:
        """Let the `fail_at`-th sync fail with EIO; 0: none."""
        self.root = root
        self.before_sync: Callable[[], None] | None = None
        self.syncs = 0
        self.failed = False
        self._fail_at = fail_at
        #: The first sync from that number on of a file below this folder fails; None: exactly that sync, of any file.
        self.fails_below: Path | None = None
        self._dropped: dict[int, bytes] = {}
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        #: Open descriptors of all that was ever synced, so that no inode number is reused.
        self._held: dict[int, int] = {}
        #: Reading and recording are one step: a slower thread would replace a newer reading by an older one.
        self._looking = threading.RLock()
        self.remember_folder(root)

    def fsync(self, fd: int) -> None:
        self._before(fd)
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if path.is_dir():
            if path == self.root or self.root in path.parents:
                self.remember_folder(path)
        else:
            self._remember_file(fd)

    def fdatasync(self, fd: int) -> None:
        self._before(fd)
        self._remember_file(fd)

    def _before(self, fd: int) -> None:
        if self.before_sync is not None:
            self.before_sync()
        self.syncs += 1
        if self._is_to_fail(fd):
            self.failed = True
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                self._hold(Path(f"/proc/self/fd/{fd}"))
                self._dropped[status.st_ino] = os.pread(self._held[status.st_ino], status.st_size, 0)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _is_to_fail(self, fd: int) -> bool:
        if self.fails_below is None:
            return self.syncs == self._fail_at
        is_of_them = Path(f"/proc/self/fd/{fd}").resolve().is_relative_to(self.fails_below)
        return is_of_them and not self.failed and self.syncs >= self._fail_at

    def remember_folder(self, path: Path) -> None:
        """Record a folder's names as synced."""
        names = {}
        with self._looking:
            for entry in os.scandir(path):
                with contextlib.suppress(FileNotFoundError):  # another thread has just renamed it
                    names[entry.name] = self._hold(Path(entry.path))
            self._names[self._hold(path)] = names

    def remember_all(self) -> None:
        """Record everything as synced, as after a clean start."""
        for folder, _, files in os.walk(self.root):
            self.remember_folder(Path(folder))
            for name in files:
                self._remember_file(self._held[self._hold(Path(folder, name))])

    def _remember_file(self, fd: int) -> None:
        with self._looking:
            number = os.fstat(fd).st_ino
            self._hold(Path(f"/proc/self/fd/{fd}"))  # Opened again: this descriptor may be write-only, or closed soon.
            now = os.pread(self._held[number], os.fstat(fd).st_size, 0)
            dropped = self._dropped.get(number)
            if dropped is not None:
                before = self._bytes.get(number, b"").ljust(len(now), b"\0")
                pages = range(0, len(now), PAGE_BYTES)
                kept = (
                    (before if now[at : at + PAGE_BYTES] == dropped[at : at + PAGE_BYTES] else now)[
                        at : at + PAGE_BYTES
                    ]
                    for at in pages
                )
                now = b"".join(kept)
            self._bytes[number] = now

    def _hold(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self._held:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if self._held.setdefault(number, fd) != fd:  # another thread was first
                os.close(fd)
        return number

    def after_power_loss(self, target: Path, random_: random.Random, luck: float) -> None:
        """Make `target` what the next boot finds.

        Args:
            luck: the share of unsynced data that survives, 0..1.
        """
        self._make_folder(self.root.stat().st_ino, target, random_, luck)

    def _make_folder(self, number: int, target: Path, random_: random.Random, luck: float) -> None:
        target.mkdir()
        synced = self._names.get(number, {})
        folder = f"/proc/self/fd/{self._held[number]}"
        names = synced
        if random_.random() < luck and os.path.isdir(folder):
            names = {}
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # another thread has renamed or removed it meanwhile
                    names[entry.name] = self._hold(Path(entry.path))
        for name, child in sorted(names.items()):  # in one order on every file system
            if os.path.isdir(f"/proc/self/fd/{self._held[child]}") or child in self._names:
                self._make_folder(child, target / name, random_, luck)
            else:
                (target / name).write_bytes(self._content(child, random_, luck))

    def _content(self, number: int, random_: random.Random, luck: float) -> bytes:
        fd = self._held[number]
        now = os.pread(fd, os.fstat(fd).st_size, 0)
        synced = self._bytes.get(number, b"")
        if now == synced:
            return now
        size = len(now) if random_.random() < luck else len(synced)
        pages = []
        for at in range(0, size, PAGE_BYTES):
            source = now if random_.random() < luck else synced
            pages.append(source[at : at + PAGE_BYTES].ljust(min(PAGE_BYTES, size - at), b"\0"))
        return b"".join(pages)

    def forked(self, target: Path, aside: Path) -> Disk:
        """Copy what a process death leaves now to `target`, with the record of what is on disk.

        Args:
            aside: a new folder for data on disk whose names were removed.
        """
        with self._looking:
            for path in (target, aside):
                path.mkdir()
            disk = Disk(target)
            numbers = {self.root.stat().st_ino: target.stat().st_ino}
            for folder, folders, files in os.walk(self.root):
                copied = target / Path(folder).relative_to(self.root)
                for name in (*folders, *files):
                    with contextlib.suppress(FileNotFoundError):  # another thread has just removed it
                        number = Path(folder, name).stat().st_ino
                        if name in folders:
                            (copied / name).mkdir()
                        else:
                            shutil.copyfile(Path(folder, name), copied / name)
                        numbers[number] = disk._hold(copied / name)
            for number, fd in self._held.items():
                if number not in numbers:
                    lost = aside / str(number)
                    if stat.S_ISDIR(os.fstat(fd).st_mode):
                        lost.mkdir()
                    else:
                        lost.write_bytes(os.pread(fd, os.fstat(fd).st_size, 0))
                    numbers[number] = disk._hold(lost)
            disk._names = {
                numbers[number]: {name: numbers[child] for name, child in names.items()}
                for number, names in self._names.items()
            }
            disk._bytes = {numbers[number]: content for number, content in self._bytes.items()}
            return disk

    def close(self) -> None:
        """Close the recorded files."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()
