"""Tag expressions as a broker reads them."""

from __future__ import annotations

import pytest

from raymq.actors.errors import BadSubscription
from raymq.actors.filter.subscription import filter_of
from raymq.storage.records.java_hash import tags_code


@pytest.mark.parametrize("expression", ["*", "", " ", " * "])
def test_all(expression: str) -> None:
    assert filter_of("TAG", expression).tags_codes is None


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
    assert filter_of("TAG", expression).tags_codes == set(map(tags_code, tags))
    assert filter_of("", expression).tags_codes == set(map(tags_code, tags))


def test_equal_hashes_both_pass() -> None:
    assert filter_of("TAG", "Aa").tags_codes == filter_of("TAG", "BB").tags_codes


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "||"), ("TAG", " || || "), ("SQL92", "a > > 1"), ("X", "a")])
def test_refused(kind: str, expression: str) -> None:
    with pytest.raises(BadSubscription):
        filter_of(kind, expression)
