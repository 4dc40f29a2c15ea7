"""What a message says of itself is the same in a forked child."""

from __future__ import annotations

import os

from raymq.client import Message


def in_child(message: Message) -> str:
    """The unique key as a forked child reads it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, message.unique_key.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        key = told.read()
    os.waitpid(child, 0)
    return key


def test_a_unique_key_that_was_read_is_the_same_in_a_forked_child() -> None:
    """Fault 14.21: the child made another one of the same number."""
    message = Message("t", b"x")
    key = message.unique_key
    assert in_child(message) == key
    assert message.encode(0, bytes(8)).find(key.encode()) > 0
