"""Progress reports of long operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """One progress report.

    Attributes:
        path: the file in progress.
        done_bytes, total_bytes: how many bytes were processed, and how many there are in total.
        copied_bytes: how many of the processed bytes were written.
    """

    path: str
    done_bytes: int
    total_bytes: int
    copied_bytes: int = 0


def ignore_progress(_: BackupProgress) -> None:
    """Ignore a progress report."""
