"""Test the options of a send and their defaults."""

from __future__ import annotations

import pytest

from raymq.actors.sending.send_plan import SendParameters
from raymq.client import MessageQueue
from raymq.client.produce.send_options import SendDefaults

DEFAULTS = SendDefaults(3.0, 2, "same", require_send_ok=False)
QUEUE = MessageQueue("t", "a", 0)


def test_missing_options_use_the_producer_defaults() -> None:
    assert DEFAULTS.terms("t", {}) == SendParameters(3.0, 2)
    assert DEFAULTS.terms("t", {"timeout": None, "retries": None, "queue": None}) == SendParameters(3.0, 2)


def test_each_option_replaces_its_default() -> None:
    given = DEFAULTS.terms("t", {"queue": QUEUE, "timeout": 1.0, "retries": 0}, delayed=True)
    assert given == SendParameters(1.0, 0, QUEUE, delayed=True)
    assert DEFAULTS.terms("t", {"sharding_key": "k"}).sharding_key == "k"


def test_only_background_sends_retry_at_the_same_broker() -> None:
    assert DEFAULTS.terms("t", {}, in_background=True).same_broker
    assert not DEFAULTS.terms("t", {}).same_broker
    assert not SendDefaults(3.0, 2, "another", require_send_ok=False).terms("t", {}, in_background=True).same_broker


def test_unknown_send_option_raises_type_error() -> None:
    with pytest.raises(TypeError, match="shardingkey"):
        DEFAULTS.terms("t", {"shardingkey": "k"})
    with pytest.raises(TypeError):
        DEFAULTS.terms("t", {"sharding_key": 7})
