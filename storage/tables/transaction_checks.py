"""How often the producers of open transactions were asked, and which given-up halves were resumed.

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
        resumed: the offsets of given-up halves that were resumed.
        known_before: before this physical offset each commit in the log has its operation record.
        is_changed: whether the file is to be replaced.
    """

    asked: dict[int, int] = field(default_factory=dict)
    resumed: set[int] = field(default_factory=set)
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

    def add_resumed(self, offset: int) -> None:
        """Note that the given-up half at `offset` was resumed."""
        if offset not in self.resumed:
            self.resumed.add(offset)
            self.is_changed = True


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
            asked, resumed, known_before = decode_mirrored(content, self._path)
            counts = {int(offset): int(count) for offset, count in asked}
            return TransactionChecks(counts, {int(offset) for offset in resumed}, int(known_before))
        except (ValueError, TypeError) as error:
            _log.error("%s cannot be read: producers are asked from the beginning (%s)", self._path, error)
            return TransactionChecks()

    def save(self, checks: TransactionChecks) -> None:
        """Replace the content. Raise StoreFull or StoreFailed if the old one stays."""
        value = [sorted(checks.asked.items()), sorted(checks.resumed), checks.known_before]
        replace(self._path, kept_twice(value))
        checks.is_changed = False
