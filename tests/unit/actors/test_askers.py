"""Which connection a reply goes to while the client that asked has told nothing but its name."""

from __future__ import annotations

from raymq.actors.broker.core.groups.askers import MAX_ID_CHARACTERS, MOST_ASKERS, Askers


def test_a_client_that_asked_is_found_until_its_connection_closes() -> None:
    askers = Askers()
    assert askers.connection_of("client") is None
    assert askers.asked("client", "first connection")
    assert not askers.asked("other client", "first connection"), "the connection is known"
    assert askers.connection_of("client") == "first connection"
    askers.connection_closed("first connection")
    assert (askers.connection_of("client"), askers.connection_of("other client")) == (None, None)
    assert askers.asked("client", "second connection")


def test_who_passes_a_request_on_is_not_who_asked() -> None:
    askers = Askers()
    askers.asked("client", "its connection")
    assert not askers.asked("client", "a forwarder's connection")
    askers.connection_closed("a forwarder's connection")
    assert askers.connection_of("client") == "its connection"


def test_what_clients_make_up_is_bounded() -> None:
    askers = Askers()
    for number in range(MOST_ASKERS + 10):
        askers.asked(f"client {number}", number % 3)
    assert askers.connection_of("client 9") is None
    assert askers.connection_of("client 10") == 1
    assert not askers.asked("x" * (MAX_ID_CHARACTERS + 1), 1)
    assert askers.connection_of("x" * (MAX_ID_CHARACTERS + 1)) is None
    for connection in range(3):
        askers.connection_closed(connection)
    assert askers.connection_of(f"client {MOST_ASKERS}") is None
