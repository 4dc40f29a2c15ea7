"""How often the producers of open transactions were asked.

RocketMQ stores a half anew for each question. Here `raymq/transaction_checks` holds the counts, replaced as a whole;
the halves stay where they are. The file may be older than the log by a few seconds: then a producer is asked once more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raymq.storage.files.fileutil import read_whole, replace
from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice

_NAME: Final = "transaction_checks"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TransactionChecks:
    """The content of the file.

    Attributes:
        asked: by offset of the half queue, how often the producers of an open half were asked.
        known_before: before this physical offset each commit in the log has its operation record.
        is_changed: whether the file is to be replaced.
    """

    asked: dict[int, int] = field(default_factory=dict)
    known_before: int = 0
    is_changed: bool = False

    def count(self, offset: int, asked: int) -> None:
        """Set how often the producers of the half at `offset` were asked."""
        self.asked[offset] = asked
        self.is_changed = True

    def forget(self, offset: int) -> None:
        """Forget the questions about a half."""
        if self.asked.pop(offset, None) is not None:
            self.is_changed = True

    def forget_from(self, end: int) -> None:
        """Forget the questions about halves from offset `end` on, which a loss of power took."""
        for offset in [each for each in self.asked if each >= end]:
            self.forget(offset)


class TransactionChecksFile:
    """The file below a store's directory."""

    def __init__(self, store_directory: Path) -> None:
        self._path = store_directory / "raymq" / _NAME

    def load(self) -> TransactionChecks:
        """Return the content; what a damaged or missing file would hold is counted anew."""
        try:
            content = read_whole(self._path)
        except FileNotFoundError:
            return TransactionChecks()
        try:
            asked, known_before = decode_mirrored(content, self._path)
            return TransactionChecks({int(offset): int(count) for offset, count in asked}, int(known_before))
        except (ValueError, TypeError) as error:
            _log.error("%s cannot be read: producers are asked from the beginning (%s)", self._path, error)
            return TransactionChecks()

    def save(self, checks: TransactionChecks) -> None:
        """Replace the content. Raise StoreFull or StoreFailed if the old one stays."""
        value = [sorted(checks.asked.items()), checks.known_before]
        replace(self._path, kept_twice(value))
        checks.is_changed = False
