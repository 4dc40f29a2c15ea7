"""What is kept of filter expressions is bounded by their characters, whoever makes them up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raymq.actors.errors import BadSubscription
from raymq.actors.filter import sql_filter
from raymq.actors.filter import subscription as filters
from raymq.actors.filter.kept_texts import KeptTexts
from raymq.actors.filter.subscription import MAX_TAG_CHARACTERS, SQL92, TAG, filter_of


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    made: list[str] = []
    kept: KeptTexts[str] = KeptTexts(10)

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


def test_nothing_is_kept_of_what_cannot_be_made() -> None:
    kept: KeptTexts[int] = KeptTexts(100)
    with pytest.raises(ValueError, match="x"):
        kept.get("x", int)
    assert kept.characters == 0


def test_characters_stay_bounded() -> None:
    rng = random.Random(3)
    kept: KeptTexts[int] = KeptTexts(1_000)
    for _ in range(2_000):
        text = "x" * rng.randrange(1, 200)
        assert kept.get(text, len) == len(text)
        assert kept.characters == sum(map(len, kept._values)) <= 1_000


def test_expressions_that_a_client_makes_up_do_not_fill_memory() -> None:
    """4,096 expressions of any length were kept for good: a hundred pulls of one connection took 350 MB."""
    for number in range(100):
        filter_of(TAG, "||".join(f"{number}-{n}" for n in range(3_000)))
        filter_of(SQL92, f"a = '{number}{'x' * 4_000}'")
    known: Any
    for known, most in ((filters._known, 1 << 20), (sql_filter._known, 1 << 18)):
        assert known.characters <= most


def test_an_expression_of_tags_has_a_limit() -> None:
    assert filter_of(TAG, "x" * MAX_TAG_CHARACTERS).tags_codes
    with pytest.raises(BadSubscription, match="at most"):
        filter_of(TAG, "x" * (MAX_TAG_CHARACTERS + 1))
