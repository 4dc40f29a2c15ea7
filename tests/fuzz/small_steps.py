"""What the delivery of delayed messages does in steps is done in many small ones."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.delay import rescue, schedule, timers
from raymq.storage.timers import timer_log


def delay_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of timers, delay levels and the rescue, until the test ends."""
    monkeypatch.setattr(timers, "_MAX_PER_PASS", 7)
    monkeypatch.setattr(timers, "_ABSORB_MESSAGES", 5)
    monkeypatch.setattr(timers, "_MAX_LOADED", 6)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 16)
    monkeypatch.setattr(rescue, "_STEP_MESSAGES", 3)
    monkeypatch.setattr(rescue, "_STEP_ENDED", 4)
    monkeypatch.setattr(schedule, "_MAX_PER_PASS", 5)
    monkeypatch.setattr(schedule, "_NOTE_BYTES", 3_000)
