"""Test that a message keeps its unique key in a forked child."""

from __future__ import annotations

from raymq.client import Message
from tests.forked_child import run_in_child


def test_unique_key_stays_the_same_in_a_forked_child() -> None:
    """Fault 14.21: the child made a different key from the same number."""
    message = Message("t", b"x")
    key = message.unique_key
    assert run_in_child(lambda: message.unique_key) == key
    assert message.encode(0, bytes(8)).find(key.encode()) > 0
