"""A fake machine for tests of a store after a power loss at a known log position."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store_parts as opening
from tests.store_records import log_file


class Machine:
    """The machine that stores see through its boot id, as long as `monkeypatch` lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._boot = 0
        for module in (opening, checkpointing_module):
            monkeypatch.setattr(module, "boot_id", lambda: f"boot {self._boot}")

    def lose_power(self, directory: Path, log_end: int) -> None:
        """Reboot, and lose all behind `log_end` of a closed store's only log file."""
        self._boot += 1
        with log_file(directory).open("r+b") as stream:
            size = stream.seek(0, 2)
            stream.seek(log_end)
            stream.write(bytes(size - log_end))
