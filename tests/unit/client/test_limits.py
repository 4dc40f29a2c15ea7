"""Test each producer limit: the last valid value passes, and the next raises an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raymq.actors.naming import UNSENDABLE_TOPICS, check_group
from raymq.actors.protocol import TopicRoute
from raymq.actors.sending.body_size import body_limit, check_body_size
from raymq.client import Connection, InvalidInput, Message, MessageQueue, QueueNotFound
from raymq.client.produce.producer import Producer
from raymq.client.produce.send_options import SendDefaults
from raymq.client.producer_limits import RULES, Rule, table
from raymq.storage.records.record_table import checked_rows

DEFAULTS = SendDefaults(3.0, 2, "same", require_send_ok=False)
FULL = 32_767 - len("UNIQ_KEY") - 34 - len("a") - 2


def message(**fields: Any) -> Callable[[], object]:
    return lambda: Message(**{"topic": "t", "body": b"x", **fields})


def row(**columns: Any) -> Callable[[], object]:
    """Return a check of a one-row table with these columns."""
    kinds = {"properties": pa.map_(pa.string(), pa.string())}
    values = {"body": b"x", **columns}
    table = pa.table({name: pa.array([value], kinds.get(name)) for name, value in values.items()})
    return lambda: checked_rows(table, **{name: name for name in values})


def options(**given: Any) -> Callable[[], object]:
    return lambda: DEFAULTS.terms("t", given)


def producer(**given: Any) -> Callable[[], object]:
    def make() -> Producer:
        with Connection(["127.0.0.1:9"]) as mq:
            return Producer(mq, "g", **given)

    return make


def batch(*messages: Message) -> Callable[[], object]:
    class Unconnected(Producer):
        def __init__(self) -> None:
            self._closed = False
            self._sending_threads = set()
            self._defaults = DEFAULTS

    return lambda: Unconnected()._batch_terms(messages, {})


def part(octets: int, allowed: int | None = None) -> Callable[[], object]:
    """Return a check of a body size against the limit that the broker reports."""
    route = TopicRoute("t", (), {"a": "h:1"}, {} if allowed is None else {"a": allowed})
    return lambda: check_body_size(octets, body_limit(route, "a"))


Calls = list[Callable[[], object]]

BAD_TOPICS = ("a b", "a/b", "..", "ä", "a\n", "a.b")
BAD_TIMEOUTS = (0, -1, float("nan"), float("inf"), 31_536_001)
OWN_NAMES = ("", "TAGS", "UNIQ_KEY", "RAYMQ_SEQUENCE")
THREES = {"keys": ["a\x03b"], "tags": "\x03", "properties": {"a": "\x03"}}

#: Names and numbers have their own error texts.
OTHER_TEXTS = ("topic", "group", "timeout", "retries", "linger")

#: For each rule, in the order of RULES: calls that break it, and calls with the last valid value.
EDGES: list[tuple[Calls, Calls]] = [
    ([message(topic=""), message(topic="t" * 128)], [message(topic="t"), message(topic="t" * 127)]),
    ([message(topic=name) for name in BAD_TOPICS], [message(topic="%|aZ09_-")]),
    ([message(topic=name) for name in sorted(UNSENDABLE_TOPICS)], [message(topic="TBW102")]),
    ([partial(check_group, name) for name in ("", "g" * 121, "g.")], [partial(check_group, "g" * 120)]),
    (
        [message(body=b""), message(body=bytes(67_108_865)), row(body=b""), row(body=bytes(67_108_865))],
        [message(body=b"x"), message(body=bytes(67_108_864)), row(body=bytes(67_108_864))],
    ),
    ([part(4_194_305), part(20_001, 20_000)], [part(4_194_304), part(20_000, 20_000)]),
    (
        [*(message(tags=tag) for tag in ("", " ", "a||b")), *(row(tags=tag) for tag in (" ", "a||b"))],
        [message(tags="a|b"), message(tags=None), row(tags="a|b"), row(tags=None), row(tags="")],
    ),
    (
        [
            *(message(keys=keys) for keys in ([""], ["a b"], "a b", "")),
            row(keys=[""]),
            row(keys=["a b"]),
            row(keys="a b"),
        ],
        [message(keys=["a", "b"]), message(keys=[]), row(keys=["a", "b"]), row(keys=""), row(keys=7)],
    ),
    (
        [make(keys=[f"a{c}b"]) for c in "\x00\x01\x02" for make in (message, row)],
        [message(**THREES), row(**THREES, body=b"\x00")],
    ),
    (
        [make(properties={name: "x"}) for name in OWN_NAMES for make in (message, row)],
        [make(properties={"tags": "x"}) for make in (message, row)],
    ),
    ([make(properties={"a": ""}) for make in (message, row)], [make(properties={"a": " "}) for make in (message, row)]),
    (
        [
            *(make(properties={"a": "x" * (FULL + 1)}) for make in (message, row)),
            *(make(tags="x" * 33_000) for make in (message, row)),
        ],
        [make(properties={"a": "x" * FULL}) for make in (message, row)],
    ),
    ([message(delay_level=-1)], [message(delay_level=0), message(delay_level=99)]),
    ([message(deliver_at=-1)], [message(deliver_at=0), message(deliver_at=9.5)]),
    ([message(deliver_at=1_764_300_000_000)], [message(deliver_at=time.time() + 3_456_000 - 60)]),
    ([message(deliver_at=time.time() + 3_456_000 + 3_600)], [message(deliver_at=time.time() + 3_456_000 - 60)]),
    ([message(deliver_at=9, delay_level=1)], [message(deliver_at=9, delay_level=0)]),
    ([batch(), batch(Message("t", b"x"), Message("u", b"x"))], [batch(Message("t", b"x"))]),
    ([batch(Message("t", b"x", delay_level=1))], [batch(Message("t", b"x"))]),
    ([options(queue=MessageQueue("t", "a", 0), sharding_key="k")], [options(sharding_key="k")]),
    ([options(queue=MessageQueue("u", "a", 0))], [options(queue=MessageQueue("t", "a", 0))]),
    (
        [options(timeout=seconds) for seconds in BAD_TIMEOUTS],
        [options(timeout=0.001)],
    ),
    ([options(retries=-1), options(retries=1.5)], [options(retries=0)]),
    ([producer(linger=-0.1), producer(linger=10.1)], []),
]


@pytest.mark.parametrize(
    ("rule", "edge"), list(zip(RULES, EDGES, strict=True)), ids=[rule.allowed[:40] for rule in RULES]
)
def test_each_producer_limit_at_its_edge(rule: Rule, edge: tuple[Calls, Calls]) -> None:
    broken, kept = edge
    for call in broken:
        with pytest.raises(rule.error) as caught:
            call()
        assert type(caught.value) in (InvalidInput, QueueNotFound)
        if isinstance(caught.value, InvalidInput):
            assert caught.value.field in (rule.field, "tags")
            if rule.field not in OTHER_TEXTS and rule.error is InvalidInput and caught.value.actual != 20_001:
                assert caught.value.limit == rule.allowed
    for call in kept:
        call()


def test_limits_page_has_the_rule_table(repository: Path) -> None:
    assert table() in (repository / "docs" / "limits.md").read_text("utf-8")
