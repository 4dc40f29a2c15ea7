"""A long JSON body is read in steps, and what comes of it is what Python's own parser makes of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body, json_steps
from raymq.actors.wire.json_steps import reading_object
from raymq.storage.steps import Steps, finish


def turns_of(steps: Steps[Any]) -> int:
    """How many times others had their turn."""
    return sum(1 for _ in steps)


def some_value(rng: random.Random, depth: int) -> Any:
    kinds = ["text", "number", "constant"] + (["object", "list"] * 2 if depth else [])
    kind = rng.choice(kinds)
    if kind == "object":
        return {rng.choice('ab"\\é😀') * n: some_value(rng, depth - 1) for n in range(rng.randrange(4))}
    if kind == "list":
        return [some_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == "text":
        return "".join(rng.choices('ab"\\/{}[]:,\n\té😀', k=rng.randrange(6)))
    return rng.choice([None, True, False]) if kind == "constant" else rng.choice([0, -1, 2**70, 1.5, 1e300])


@pytest.mark.parametrize("seed", range(20))
def test_it_makes_of_a_text_what_the_parser_makes_of_it_and_refuses_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_steps, "_STEP_CHARACTERS", 10)
    rng = random.Random(seed)
    for _ in range(200):
        value = {"a": some_value(rng, 4), "b": some_value(rng, 4)}
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        if rng.random() < 0.7:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["", "", *'{}[]:,"x1\\ ']) + text[at + rng.randrange(2) :]
        body, depth = text.encode(), rng.randrange(5)
        expected: dict[str, Any] | None = None
        try:
            expected = json_body.read_object(body)
        except InvalidInput:
            with pytest.raises(InvalidInput):
                finish(reading_object(body, depth=depth))
        if expected is not None:
            assert finish(reading_object(body, depth=depth)) == expected, text


def test_long_ones_are_read_in_steps_and_short_ones_at_once() -> None:
    table = {f"t{n}": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(10_000)}
    body = json.dumps({"wrapper": {"table": table}}).encode()
    limits = {"max_bytes": 1 << 24, "max_values": 1 << 20}
    assert finish(reading_object(body, depth=3, **limits)) == {"wrapper": {"table": table}}
    assert turns_of(reading_object(body, depth=3, **limits)) >= len(body) // json_steps._STEP_CHARACTERS - 1
    assert turns_of(reading_object(b'{"a":1}', depth=3)) == 0


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff" * 60_000, b"[" * 60_000, b"{" * 60_000, b'{"a":1}x' * 9_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    for depth in (0, 3, 1_000_000):
        with pytest.raises(InvalidInput):
            finish(reading_object(body, depth=depth))


def test_limits_are_looked_at_first() -> None:
    with pytest.raises(InvalidInput, match="bytes of JSON"):
        finish(reading_object(b" " * 100, depth=1, max_bytes=99))
    with pytest.raises(InvalidInput, match="at most 3 values"):
        finish(reading_object(b'{"a":[1,2,3]}', depth=1, max_values=3))
