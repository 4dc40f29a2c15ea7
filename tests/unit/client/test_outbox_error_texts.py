"""Test that an outbox keeps sends whose error text is not valid Unicode."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from raymq.actors.errors import NotStored
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import SendOutcome, Sizes
from raymq.client import Message
from raymq.client.produce.message_encoder import encode_messages
from raymq.client.produce.outbox import OutboxSender
from raymq.client.produce.outbox_file import OutboxFile

#: Half of a surrogate pair, which JSON can contain.
LONE_SURROGATE = "\ud83d"
TERMS = SendParameters(1.0, 0)


class FailingSender:
    """A sender that always fails, the first time with a lone surrogate in the text."""

    def __init__(self) -> None:
        self._errors = [LONE_SURROGATE]

    async def send(self, _topic: str, _records: bytearray, _sizes: Sizes, _terms: SendParameters) -> SendOutcome:
        error = NotStored(self._errors.pop() if self._errors else "away")
        await asyncio.sleep(0)  # so that the tries of all sends end together
        raise error


async def send(sends: OutboxSender, body: bytes) -> BaseException | None:
    message = Message("t", body)
    records, sizes = encode_messages([message], [message.unique_key], bytes(8))
    try:
        await sends.send("t", records, sizes, TERMS)
    except NotStored as error:
        return error
    return None


async def keep_all(path: Path, bodies: list[bytes]) -> list[BaseException | None]:
    sends = OutboxSender(FailingSender(), OutboxFile(path), TERMS)
    try:
        return await asyncio.gather(*(send(sends, body) for body in bodies))
    finally:
        await sends.close()


def test_non_unicode_error_text_keeps_all_sends_in_the_outbox(tmp_path: Path) -> None:
    bodies = [b"0", b"1", b"2"]
    errors = asyncio.run(keep_all(tmp_path / "outbox", bodies))
    assert [getattr(error, "kept", None) for error in errors] == [True, True, True]
    with closing(OutboxFile(tmp_path / "outbox", read_only=True)) as file:
        assert [message.body for batch in file.batches() for message in batch.messages()] == bodies
