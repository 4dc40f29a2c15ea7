"""What a send may be given, and what becomes of it."""

from __future__ import annotations

import pytest

from raymq.actors.sending.sender import SendParameters
from raymq.client import MessageQueue
from raymq.client.produce.send_options import SendDefaults

DEFAULTS = SendDefaults(3.0, 2, "same", require_send_ok=False)
QUEUE = MessageQueue("t", "a", 0)


def test_what_is_not_given_is_the_producers_own() -> None:
    assert DEFAULTS.terms("t", {}) == SendParameters(3.0, 2)
    assert DEFAULTS.terms("t", {"timeout": None, "retries": None, "queue": None}) == SendParameters(3.0, 2)


def test_each_option_counts() -> None:
    given = DEFAULTS.terms("t", {"queue": QUEUE, "timeout": 1.0, "retries": 0}, delayed=True)
    assert given == SendParameters(1.0, 0, QUEUE, delayed=True)
    assert DEFAULTS.terms("t", {"sharding_key": "k"}).sharding_key == "k"


def test_only_sends_in_the_background_stay_with_their_broker() -> None:
    assert DEFAULTS.terms("t", {}, in_background=True).same_broker
    assert not DEFAULTS.terms("t", {}).same_broker
    assert not SendDefaults(3.0, 2, "another", require_send_ok=False).terms("t", {}, in_background=True).same_broker


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="shardingkey"):
        DEFAULTS.terms("t", {"shardingkey": "k"})
    with pytest.raises(TypeError):
        DEFAULTS.terms("t", {"sharding_key": 7})
