"""Test when a broker answers: at once, or after the flush and the announcement of a new topic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.context import BrokerContext
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command
from raymq.storage.store import Store
from tests.store_records import SMALL


def make_context(directory: Path, announced: list[str], *, flush: str = "async") -> BrokerContext:
    async def announce() -> None:
        announced.append("announced")

    async def settings_durable() -> None:
        announced.append("durable")

    store = Store.open(directory, replace(SMALL, flush=flush))
    fields = dict.fromkeys(BrokerContext.__dataclass_fields__, cast("Any", None)) | {
        "acks": LocalAcks(store),
        "announce": announce,
        "settings_durable": settings_durable,
    }
    store.close()
    return BrokerContext(**fields)


def answer(status: SendStatus) -> Command:
    return Command(0, {"status": status.value})


def test_answer_without_flush_is_immediate(tmp_path: Path) -> None:
    assert make_context(tmp_path, []).when_durable(answer) == answer(SendStatus.SEND_OK)


async def test_new_topic_is_announced_before_answer(tmp_path: Path) -> None:
    announced: list[str] = []
    waiting = make_context(tmp_path, announced).when_durable(answer, new_topic=True)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.SEND_OK)
    assert announced == ["durable", "announced"]


async def test_answer_has_status_of_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(tmp_path, [], flush="sync")

    async def flush() -> SendStatus:
        return SendStatus.FLUSH_DISK_TIMEOUT

    monkeypatch.setattr(cast("LocalAcks", context.acks)._commits, "wait", flush)
    waiting = context.when_durable(answer)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.FLUSH_DISK_TIMEOUT)
