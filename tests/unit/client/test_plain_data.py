"""Test the JSON types of results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from raymq.client.plain_data import to_plain_data


@dataclass
class Figures:
    rate: float
    more: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (0, 0),
        (True, True),
        (math.nan, None),
        (math.inf, None),
        ({"a": [-math.inf, "x"]}, {"a": [None, "x"]}),
        (Figures(math.nan, (math.inf, 2.0)), {"rate": None, "more": [None, 2.0]}),
    ],
)
def test_numbers_that_are_not_finite_are_unknown(value: Any, expected: Any) -> None:
    assert to_plain_data(value) == expected
    json.dumps(to_plain_data(value), allow_nan=False)
