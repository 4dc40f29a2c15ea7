"""Tag expressions as a broker reads them."""

from __future__ import annotations

import pytest

from raymq.actors.errors import BadSubscription
from raymq.actors.filter.tag_expression import parse_filter
from raymq.storage.records.java_hash import tags_code


@pytest.mark.parametrize("expression", ["*", "", " ", " * "])
def test_all(expression: str) -> None:
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
def test_tags(expression: str, tags: list[str]) -> None:
    assert parse_filter("TAG", expression).tags_codes == set(map(tags_code, tags))
    assert parse_filter("", expression).tags_codes == set(map(tags_code, tags))


def test_equal_hashes_both_pass() -> None:
    assert parse_filter("TAG", "Aa").tags_codes == parse_filter("TAG", "BB").tags_codes


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "||"), ("TAG", " || || "), ("SQL92", "a > > 1"), ("X", "a")])
def test_refused(kind: str, expression: str) -> None:
    with pytest.raises(BadSubscription):
        parse_filter(kind, expression)
