"""A long JSON body is read in steps, and what comes of it is what Python's own parser makes of it."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import incremental_json, json_body
from raymq.actors.wire.incremental_json import read_object_steps
from raymq.storage.cooperative_steps import Steps, run_steps


def turns_of(steps: Steps[Any]) -> int:
    """How many times others had their turn."""
    return sum(1 for _ in steps)


def some_value(rng: random.Random, depth: int) -> Any:
    kinds = ["text", "number", "constant"] + (["object", "list"] * 2 if depth else [])
    kind = rng.choice(kinds)
    if kind == "object":
        return {rng.choice('ab"\\é😀}]{[') * n: some_value(rng, depth - 1) for n in range(rng.randrange(4))}
    if kind == "list":
        return [some_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == "text":
        return "".join(rng.choices('ab"\\/{}[]:,\n\té😀', k=rng.randrange(6)))
    return rng.choice([None, True, False]) if kind == "constant" else rng.choice([0, -1, 2**70, 1.5, 1e300])


@pytest.mark.parametrize("short", [0, 3, 1_000])
@pytest.mark.parametrize("seed", range(20))
def test_it_makes_of_a_text_what_the_parser_makes_of_it_and_refuses_the_same(
    seed: int, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_json, "_STEP_CHARACTERS", 10)
    monkeypatch.setattr(incremental_json, "_short", re.compile(rf"[{{\[][^{{}}\[\]]{{0,{short}}}[}}\]]").match)
    rng = random.Random(seed)
    for _ in range(200):
        value = {"a": some_value(rng, 4), "b": some_value(rng, 4)}
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        if rng.random() < 0.7:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["", "", *'{}[]:,"x1\\ ']) + text[at + rng.randrange(2) :]
        body = text.encode()
        expected: dict[str, Any] | None = None
        try:
            expected = json_body.read_object(body)
        except InvalidInput:
            with pytest.raises(InvalidInput):
                run_steps(read_object_steps(body))
        if expected is not None:
            assert run_steps(read_object_steps(body)) == expected, text


def test_long_ones_are_read_in_steps_and_short_ones_at_once() -> None:
    table = {f"t{n}": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(10_000)}
    body = json.dumps({"wrapper": {"table": table}}).encode()
    limits = {"max_bytes": 1 << 24, "max_values": 1 << 20}
    assert run_steps(read_object_steps(body, **limits)) == {"wrapper": {"table": table}}
    assert turns_of(read_object_steps(body, **limits)) >= len(body) // incremental_json._STEP_CHARACTERS - 1
    assert turns_of(read_object_steps(b'{"a":1}')) == 0


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize("pair", ["", r'"z":"\ud83d\ude00",'])
@pytest.mark.parametrize("deep", [1, 2, 3, 10])
@pytest.mark.parametrize("value", ["1.2345678901234567e-300", "9" * 4_000, "1", '{"x":1}', "[[]]", '"]"'])
def test_no_value_is_more_than_a_step_however_deep_it_stands(value: str, deep: int, pair: str) -> None:
    """What stood below the third level was one piece: numbers of 14 MB held a name server for 1.6 s."""
    most = 2 * incremental_json._STEP_CHARACTERS
    count = 10 * incremental_json._STEP_CHARACTERS // (len(value) + 1)
    body = f'{{{pair}"a":{"[" * deep}{",".join([value] * count)}{"]" * deep}}}'.encode()
    found = run_steps(read_object_steps(body, max_values=1 << 20))
    assert found == json.loads(body)
    assert turns_of(read_object_steps(body, max_values=1 << 20)) >= len(body) // most


def test_a_body_that_is_not_read_in_steps_has_few_fractions() -> None:
    """150,000 of them in 3.6 MB were 0.1 s, and 0.4 s beside an escaped emoji."""
    body = b'{"a":[%b]}' % b",".join([b"1.5"] * json_body.MAX_FLOATS)
    assert json_body.read_object(body) == json.loads(body) == json_body.read_answer(body)
    more = body.replace(b"]", b",1e5]" + b" " * 50_000)
    with pytest.raises(InvalidInput, match="at most 10000 numbers with a fraction"):
        json_body.read_object(more)
    assert json_body.read_answer(more) == json.loads(more)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff" * 60_000, b"[" * 60_000, b"{" * 60_000, b'{"a":1}x' * 9_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        run_steps(read_object_steps(body))


def test_limits_are_looked_at_first() -> None:
    with pytest.raises(InvalidInput, match="bytes of JSON"):
        run_steps(read_object_steps(b" " * 100, max_bytes=99))
    with pytest.raises(InvalidInput, match="at most 3 values"):
        run_steps(read_object_steps(b'{"a":[1,2,3]}', max_values=3))
