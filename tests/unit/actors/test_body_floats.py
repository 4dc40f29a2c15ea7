"""Test that floats in a JSON body take no more of the event loop than other values."""

from __future__ import annotations

import json

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body

#: Takes msgspec 7 us to parse.
SLOW = b"1e-320"


def test_body_with_too_many_floats_is_refused() -> None:
    body = b'{"a":[%b]}' % b",".join([SLOW] * (json_body.MAX_FLOATS + 1))
    with pytest.raises(InvalidInput, match="at most 10000 numbers with a fraction or an exponent"):
        json_body.read_object(body)


def test_body_with_as_many_floats_as_allowed_is_read() -> None:
    floats = b",".join([b"1.5"] * json_body.MAX_FLOATS)
    whole_numbers = b",".join([b"7"] * 20_000)
    body = b'{"a":[%b],"b":[%b]}' % (floats, whole_numbers)
    assert json_body.read_object(body) == json.loads(body)
