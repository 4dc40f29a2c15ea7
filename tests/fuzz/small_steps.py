"""Make the delivery of delayed messages run in many small steps."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.delay import delayed_message_relocator, schedule_message_service, timer_message_store
from raymq.storage.timers import timer_log


def delay_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set small steps for timers, delay levels and the relocation of messages, until the test ends."""
    monkeypatch.setattr(timer_message_store, "_MAX_PER_PASS", 7)
    monkeypatch.setattr(timer_message_store, "_MAX_LOADED", 6)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 16)
    monkeypatch.setattr(delayed_message_relocator, "_STEP_MESSAGES", 3)
    monkeypatch.setattr(delayed_message_relocator, "_STEP_ENDED", 4)
    monkeypatch.setattr(schedule_message_service, "_MAX_PER_PASS", 5)
    monkeypatch.setattr(schedule_message_service, "_NOTE_BYTES", 3_000)
