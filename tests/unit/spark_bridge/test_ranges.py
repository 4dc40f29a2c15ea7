"""Test the check of a read's start and end positions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from raymq.client import InvalidInput, MessageQueue
from raymq.spark_bridge.offset_ranges import check_position

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("group:etl-1", "group:etl-1"),
        (0, 0.0),
        (1.7e9, 1.7e9),
        (Fraction(1, 2), 0.5),
        (np.int64(7), 7.0),
        ({}, {}),
        ({A: 0, B: 2**63 - 1}, {A: 0, B: 2**63 - 1}),
        ({A: np.int32(3)}, {A: 3}),
    ],
)
def test_valid_positions_are_normalized(given: Any, taken: Any) -> None:
    assert check_position("start", given) == taken


@pytest.mark.parametrize(
    "given",
    [
        *(None, True, "", "x", "EARLIEST", "group:", b"x", [1], ("t", "broker-a", 0), object(), 1j),
        *(math.nan, math.inf, -math.inf, -5, 1e300, 1 << 1024),
        *({A: 0.5}, {A: True}, {A: "0"}, {A: None}, {A: -1}, {A: 2**63}, {A: math.nan}),
        *({"x": 1}, {None: 1}, {MessageQueue("t", "broker-a", True): 0}, {MessageQueue(1, "broker-a", 0): 0}),  # type: ignore[arg-type]
    ],
)
def test_invalid_position_names_the_argument(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_position("end", given)
    assert caught.value.field.partition(".")[0] == "end"


@pytest.mark.parametrize("given", ["group:a b", "group:" + "x" * 300])
def test_invalid_group_name_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        check_position("start", given)
