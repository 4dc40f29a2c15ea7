"""How far something has come that takes long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """Told now and then.

    Attributes:
        path: the file that it is at.
        done_bytes, total_bytes: how much there is to be looked at, and was.
        copied_bytes: how much of that was written.
    """

    path: str
    done_bytes: int
    total_bytes: int
    copied_bytes: int = 0


def ignore(_: BackupProgress) -> None:
    """For who need not know."""
