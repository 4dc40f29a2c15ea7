"""Reading ranges of queues: what a broker answers that makes no sense."""

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
def test_an_answer_that_goes_no_further_ends_the_reading(monkeypatch: pytest.MonkeyPatch, next_offset: int) -> None:
    """It was asked for again and again, without end."""
    nothing = Fetched(0, next_offset, 0, 10, memoryview(b""), np.zeros(0, np.int32), np.zeros(0, np.int64), None)

    async def fetch(*_: object, **__: object) -> list[Fetched]:
        return [nothing]

    monkeypatch.setattr(range_reader, "fetch", fetch)
    with RangeReader(["127.0.0.1:1"]) as reader, pytest.raises(ProtocolError):
        list(reader.table(MessageQueue("t", "broker-a", 0), 5, 10))
