"""Test that a range reader rejects invalid fetch answers."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client.bulk import range_reader
from raymq.client.bulk.range_reader import RangeReader


@pytest.mark.timeout(20)
@pytest.mark.parametrize("next_offset", [5, 4])
def test_fetch_answer_without_progress_raises_protocol_error(monkeypatch: pytest.MonkeyPatch, next_offset: int) -> None:
    """Cover a regression: the same offset was fetched forever."""
    nothing = Fetched(0, next_offset, 0, 10, memoryview(b""), np.zeros(0, np.int32), np.zeros(0, np.int64), None)

    async def fetch(*_: object, **__: object) -> list[Fetched]:
        return [nothing]

    monkeypatch.setattr(range_reader, "fetch", fetch)
    with RangeReader(["127.0.0.1:1"]) as reader, pytest.raises(ProtocolError):
        list(reader.table(MessageQueue("t", "broker-a", 0), 5, 10))
