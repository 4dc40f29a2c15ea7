"""Test that the incremental JSON reader works in steps and agrees with Python's own parser."""

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


def count_turns(steps: Steps[Any]) -> int:
    """Count the turns that the steps leave to others."""
    return sum(1 for _ in steps)


def random_value(rng: random.Random, depth: int) -> Any:
    kinds = ["text", "number", "constant"] + (["object", "list"] * 2 if depth else [])
    kind = rng.choice(kinds)
    if kind == "object":
        return {rng.choice('ab"\\é😀}]{[') * n: random_value(rng, depth - 1) for n in range(rng.randrange(4))}
    if kind == "list":
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == "text":
        return "".join(rng.choices('ab"\\/{}[]:,\n\té😀', k=rng.randrange(6)))
    return rng.choice([None, True, False]) if kind == "constant" else rng.choice([0, -1, 2**70, 1.5, 1e300])


@pytest.mark.parametrize("short", [0, 3, 1_000])
@pytest.mark.parametrize("seed", range(20))
def test_incremental_reader_matches_python_parser(seed: int, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental_json, "_STEP_CHARACTERS", 10)
    monkeypatch.setattr(incremental_json, "_short", re.compile(rf"[{{\[][^{{}}\[\]]{{0,{short}}}[}}\]]").match)
    rng = random.Random(seed)
    for _ in range(200):
        value = {"a": random_value(rng, 4), "b": random_value(rng, 4)}
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


def test_long_body_is_read_in_steps_and_short_body_at_once() -> None:
    table = {f"t{n}": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(10_000)}
    body = json.dumps({"wrapper": {"table": table}}).encode()
    limits = {"max_bytes": 1 << 24, "max_values": 1 << 20}
    assert run_steps(read_object_steps(body, **limits)) == {"wrapper": {"table": table}}
    assert count_turns(read_object_steps(body, **limits)) >= len(body) // incremental_json._STEP_CHARACTERS - 1
    assert count_turns(read_object_steps(b'{"a":1}')) == 0


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize("pair", ["", r'"z":"\ud83d\ude00",'])
@pytest.mark.parametrize("deep", [1, 2, 3, 10])
@pytest.mark.parametrize("value", ["1.2345678901234567e-300", "9" * 4_000, "1", '{"x":1}', "[[]]", '"]"'])
def test_deeply_nested_values_are_read_in_steps(value: str, deep: int, pair: str) -> None:
    """Guard against long steps: 14 MB below the third level took 1.6 s."""
    most = 2 * incremental_json._STEP_CHARACTERS
    count = 10 * incremental_json._STEP_CHARACTERS // (len(value) + 1)
    body = f'{{{pair}"a":{"[" * deep}{",".join([value] * count)}{"]" * deep}}}'.encode()
    found = run_steps(read_object_steps(body, max_values=1 << 20))
    assert found == json.loads(body)
    assert count_turns(read_object_steps(body, max_values=1 << 20)) >= len(body) // most


def test_unstepped_body_has_limited_fractional_numbers() -> None:
    """Bound the parse time of fractions.

    150,000 fractions (3.6 MB) took 0.1 s, and 0.4 s beside an escaped emoji.
    """
    body = b'{"a":[%b]}' % b",".join([b"1.5"] * json_body.MAX_FLOATS)
    assert json_body.read_object(body) == json.loads(body) == json_body.read_answer(body)
    more = body.replace(b"]", b",1e5]" + b" " * 50_000)
    with pytest.raises(InvalidInput, match="at most 10000 numbers with a fraction"):
        json_body.read_object(more)
    assert json_body.read_answer(more) == json.loads(more)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff" * 60_000, b"[" * 60_000, b"{" * 60_000, b'{"a":1}x' * 9_000]
)
def test_body_without_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        run_steps(read_object_steps(body))


def test_size_limits_are_checked_first() -> None:
    with pytest.raises(InvalidInput, match="bytes of JSON"):
        run_steps(read_object_steps(b" " * 100, max_bytes=99))
    with pytest.raises(InvalidInput, match="at most 3 values"):
        run_steps(read_object_steps(b'{"a":[1,2,3]}', max_values=3))
