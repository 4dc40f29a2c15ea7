"""Test which connection a reply goes to while only the client's name is known."""

from __future__ import annotations

from raymq.actors.broker.core.groups.pending_requesters import MAX_ID_CHARACTERS, MAX_REQUESTERS, PendingRequesters


def test_requester_is_found_until_its_connection_closes() -> None:
    requesters = PendingRequesters()
    assert requesters.connection_of("client") is None
    assert requesters.add_requester("client", "first connection")
    assert not requesters.add_requester("other client", "first connection"), "the connection is known"
    assert requesters.connection_of("client") == "first connection"
    requesters.connection_closed("first connection")
    assert (requesters.connection_of("client"), requesters.connection_of("other client")) == (None, None)
    assert requesters.add_requester("client", "second connection")


def test_forwarder_does_not_replace_requester() -> None:
    requesters = PendingRequesters()
    requesters.add_requester("client", "its connection")
    assert not requesters.add_requester("client", "a forwarder's connection")
    requesters.connection_closed("a forwarder's connection")
    assert requesters.connection_of("client") == "its connection"


def test_requesters_are_bounded() -> None:
    requesters = PendingRequesters()
    for number in range(MAX_REQUESTERS + 10):
        requesters.add_requester(f"client {number}", number % 3)
    assert requesters.connection_of("client 9") is None
    assert requesters.connection_of("client 10") == 1
    assert not requesters.add_requester("x" * (MAX_ID_CHARACTERS + 1), 1)
    assert requesters.connection_of("x" * (MAX_ID_CHARACTERS + 1)) is None
    for connection in range(3):
        requesters.connection_closed(connection)
    assert requesters.connection_of(f"client {MAX_REQUESTERS}") is None
