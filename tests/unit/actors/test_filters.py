"""Test how a broker parses tag expressions."""

from __future__ import annotations

import pytest

from raymq.actors.errors import BadSubscription
from raymq.storage.records.java_hash import tags_code
from tests.unit.actors.filters import parse_filter


@pytest.mark.parametrize("expression", ["*", "", " ", " * "])
def test_match_all_expressions(expression: str) -> None:
    assert parse_filter("TAG", expression).tags_codes is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", ["a"]),
        ("a||b", ["a", "b"]),
        (" a || b ||", ["a", "b"]),
        ("a || || b", ["a", "b"]),
        ("a b", ["a b"]),
        ("Grüße||数据", ["Grüße", "数据"]),
    ],
)
def test_tag_expressions(expression: str, tags: list[str]) -> None:
    assert parse_filter("TAG", expression).tags_codes == set(map(tags_code, tags))
    assert parse_filter("", expression).tags_codes == set(map(tags_code, tags))


def test_tags_with_equal_hashes_both_match() -> None:
    assert parse_filter("TAG", "Aa").tags_codes == parse_filter("TAG", "BB").tags_codes


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "||"), ("TAG", " || || "), ("SQL92", "a > > 1"), ("X", "a")])
def test_invalid_expressions_raise_bad_subscription(kind: str, expression: str) -> None:
    with pytest.raises(BadSubscription):
        parse_filter(kind, expression)
