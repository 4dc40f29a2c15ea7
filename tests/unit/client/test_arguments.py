"""Test each kind of argument at its limits; InvalidInput has the field and the limit."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from raymq.actors.sending.send_plan import LEAST_TRY_SECONDS, SendPlan
from raymq.client import InvalidInput, MessageQueue, arguments

NEVER: list[Any] = [None, "1", b"1", math.nan, math.inf, -math.inf, -1, 1 << 70, 1e300, [], {}, object(), True, 1j]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (arguments.duration, [0, 0.5, 31_536_000, Fraction(1, 2), np.float32(2)], [31_536_001, 1e12]),
        (lambda f, v: arguments.duration(f, v, above=True), [1e-9, 7], [0, 0.0, -0.0]),
        (arguments.timestamp, [0, 1.7e9, 1.7e9 + 0.5], [1e300, 1.7e12]),
        (arguments.per_second, [0.001, 1_000_000], [0, 1e10]),
        (lambda f, v: arguments.whole(f, v, 1), [1, 2**31 - 1, np.int64(7)], [0, 2**31, 1.0, 1.5, np.True_]),
        (arguments.offset, [0, 2**63 - 1], [2**63, 1.5]),
    ],
)
def test_numbers_outside_their_limits_raise_invalid_input(
    check: Callable[[str, Any], Any], good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert check("field", value) == value
    for value in [*NEVER, *bad]:
        with pytest.raises(InvalidInput) as caught:
            check("field", value)
        assert caught.value.field == "field"
        assert str(caught.value.limit)


def test_flags_texts_and_queues_are_type_checked() -> None:
    assert arguments.flag("f", True) is True
    for value in (1, 0, None, "yes", np.True_):
        with pytest.raises(InvalidInput):
            arguments.flag("f", value)
    assert arguments.text("t", "ä") == "ä"
    for value in ("", None, 7, b"x", "\ud800"):
        with pytest.raises(InvalidInput):
            arguments.text("t", value)
    queue = MessageQueue("t", "a", 0)
    assert arguments.queue("queue", queue) is queue
    for value in (
        ("t", "a", 0),
        None,
        MessageQueue("t", "a", 0.0),
        MessageQueue("t", "a", True),
        MessageQueue(1, 2, 3),
    ):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            arguments.queue("queue", value)


def test_invalid_input_survives_pickle() -> None:
    with pytest.raises(InvalidInput) as caught:
        arguments.duration("timeout", math.inf)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.field, again.actual) == ("timeout", math.inf)


def test_try_timeout_has_a_minimum() -> None:
    plan = SendPlan(lambda: 0.0, timeout=3.0, retries=10**9)
    assert plan.try_timeout() == LEAST_TRY_SECONDS
    assert SendPlan(lambda: 0.0, timeout=3.0, retries=2).try_timeout() == 1.0
    assert SendPlan(lambda: 0.0, timeout=0.01, retries=2).try_timeout() == 0.01
