"""Test that the caches of filter expressions are bounded by their characters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raymq.actors.errors import BadSubscription
from raymq.actors.filter import sql_filter
from raymq.actors.filter import tag_expression as filters
from raymq.actors.filter.lru_cache import LRUCache
from raymq.actors.filter.tag_expression import MAX_TAG_CHARACTERS, SQL92, TAG
from tests.unit.actors.filters import parse_filter


def test_least_recently_used_text_is_evicted() -> None:
    made: list[str] = []
    kept: LRUCache[str] = LRUCache(10)

    def get(text: str) -> str:
        def make(each: str) -> str:
            made.append(each)
            return each.upper()

        return kept.get(text, make)

    assert [get(text) for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb")] == [
        *("AAAA", "BBBB", "AAAA", "CCCC", "AAAA", "BBBB")
    ]
    assert made == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert get("d" * 11) == "D" * 11, "given, and not kept"
    assert kept.characters == 0


def test_failed_computation_is_not_cached() -> None:
    kept: LRUCache[int] = LRUCache(100)
    with pytest.raises(ValueError, match="x"):
        kept.get("x", int)
    assert kept.characters == 0


def test_cached_characters_stay_bounded() -> None:
    rng = random.Random(3)
    kept: LRUCache[int] = LRUCache(1_000)
    for _ in range(2_000):
        text = "x" * rng.randrange(1, 200)
        assert kept.get(text, len) == len(text)
        assert kept.characters == sum(map(len, kept._values)) <= 1_000


def test_client_expressions_do_not_fill_memory() -> None:
    """Bound the cache by length.

    It kept 4,096 expressions of any length: a hundred pulls of one connection took 350 MB.
    """
    for number in range(100):
        parse_filter(TAG, "||".join(f"{number}-{n}" for n in range(3_000)))
        parse_filter(SQL92, f"a = '{number}{'x' * 4_000}'")
    known: Any
    for known, most in ((filters._known, 1 << 20), (sql_filter._known, 1 << 18)):
        assert known.characters <= most


def test_tag_expression_length_is_limited() -> None:
    assert parse_filter(TAG, "x" * MAX_TAG_CHARACTERS).tags_codes
    with pytest.raises(BadSubscription, match="at most"):
        parse_filter(TAG, "x" * (MAX_TAG_CHARACTERS + 1))
