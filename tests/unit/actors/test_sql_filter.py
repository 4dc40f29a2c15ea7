"""Test SQL92 filters: a table of meanings, refused expressions, and random ones against an evaluator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.filter.sql_filter import MAX_CHARACTERS, compile_sql
from raymq.storage.errors import InvalidInput
from raymq.storage.records.record import encode, encode_properties

Properties = dict[str, str]


def records_of(messages: list[Properties]) -> tuple[bytes, np.ndarray]:
    records = [
        encode("t", 0, b"b", encode_properties(own), born_timestamp_ms=1, born_host=("127.0.0.1", 1))
        for own in messages
    ]
    return b"".join(records), np.array([len(record) for record in records], np.int32)


def passes(expression: str, *messages: Properties) -> list[bool]:
    return compile_sql(expression).mask(*records_of(list(messages))).tolist()


MEANINGS: list[tuple[str, Properties, bool]] = [
    # numbers
    ("a = 5", {"a": "5"}, True),
    ("a = 5", {"a": "5.0"}, True),
    ("a = 5", {"a": "+5"}, True),
    ("a = 5", {"a": "x5"}, False),
    ("a <> 5", {"a": "x5"}, False),
    ("a <> 5", {"a": "6"}, True),
    ("a > 10", {"a": "9"}, False),
    ("a >= 10L", {"a": "10"}, True),
    ("a < -1.5e1", {"a": "-16"}, True),
    ("a < .5", {"a": "0.25"}, True),
    ("3 < a", {"a": "4"}, True),
    ("3 >= a", {"a": "4"}, False),
    ("a = 12345678901234567", {"a": "12345678901234567"}, True),
    ("a = 12345678901234568", {"a": "12345678901234567"}, False),
    ("a > 12345678901234567890", {"a": "12345678901234567999999"}, True),
    ("a between 3 and 5", {"a": "5"}, True),
    ("a between 3 and 5", {"a": "5.01"}, False),
    ("a not between 3 and 5", {"a": "6"}, True),
    # texts
    ("a = '5'", {"a": "5"}, True),
    ("a = '5'", {"a": "5.0"}, False),
    ("a = 'it''s'", {"a": "it's"}, True),
    ("a = 'größer'", {"a": "größer"}, True),
    ("a > 'm'", {"a": "n"}, True),
    ("a between 'a' and 'c'", {"a": "bz"}, True),
    ("a in ('x', 'y')", {"a": "y"}, True),
    ("a in ('x', 3)", {"a": "3.0"}, True),
    ("a not in ('x', 'y')", {"a": "z"}, True),
    ("a not in ('x', 'y')", {"a": "x"}, False),
    ("a contains 'b.'", {"a": "ab.c"}, True),
    ("a contains 'b.'", {"a": "abbc"}, False),
    ("a startswith 'ab'", {"a": "abc"}, True),
    ("a not endswith 'ab'", {"a": "abc"}, True),
    ("TAGS in ('A', 'B') and KEYS contains 'k1'", {"TAGS": "A", "KEYS": "k0 k1"}, True),
    # truth
    ("a = TRUE", {"a": "True"}, True),
    ("a", {"a": "true"}, True),
    ("a", {"a": "yes"}, False),
    ("not a", {"a": "yes"}, False),
    ("a <> true", {"a": "false"}, True),
    ("TRUE", {}, True),
    ("FALSE or 1 < 2", {}, True),
    # missing properties
    ("a = 5", {}, False),
    ("a <> 5", {}, False),
    ("not (a = 5)", {}, False),
    ("a is null", {}, True),
    ("a is not null", {"a": "0"}, True),
    ("a not in ('x')", {}, False),
    ("a not contains 'x'", {}, False),
    ("a > 5 or b = 1", {"b": "1"}, True),
    ("not (a > 5 and b = 1)", {"b": "2"}, True),
    # two properties
    ("a < b", {"a": "9", "b": "10"}, True),
    ("a < b", {"a": "x9", "b": "x10"}, False),
    # operator precedence
    ("not a = 'x'", {"a": "y"}, True),
    ("a = 1 or b = 1 and c = 1", {"a": "1"}, True),
    ("(a = 1 or b = 1) and c = 1", {"a": "1"}, False),
    ("not a = 1 and b = 1", {"a": "1", "b": "1"}, False),
    # case and whitespace
    ("A = 1", {"a": "1"}, False),
    ("index = 1 AND order = 2 And notes = 3", {"index": "1", "order": "2", "notes": "3"}, True),
    ("\n(( price )>3 )\t", {"price": "4"}, True),
]


@pytest.mark.parametrize(("expression", "own", "expected"), MEANINGS)
def test_expression_selects_expected_messages(expression: str, own: Properties, expected: bool) -> None:
    # Place it between others, to cover columns with and without missing values.
    assert passes(expression, {"z": "1"}, own, {"z": "1"})[1] is expected
    assert passes(expression, own) == [expected]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a > > 3",
        "a =",
        "a = 1 b",
        "s like 'e%'",
        "a = 'x",
        "a in ()",
        "a in (b)",
        "a = 1.2.3",
        "a = 0x10",
        "a is 3",
        "a = NULL",
        "3",
        "'x'",
        "a > TRUE",
        "1 = 'x'",
        "(a = 1) = 2",
        "(a = 1) is null",
        "3 in (3)",
        "a = '\x01'",
        "a and",
        "not " * 100 + "a",
        "(" * 5_000 + "a",
        " or ".join(["a = 1"] * 2_000),
    ],
)
def test_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        compile_sql(expression)
    assert caught.value.field == "expression"


def test_long_flat_expression_is_accepted() -> None:
    expression = " or ".join(f"a = {number}" for number in range(700))
    assert len(expression) <= MAX_CHARACTERS
    assert passes(expression, {"a": "699"}, {"a": "700"}) == [True, False]


def test_expression_on_no_records_selects_nothing() -> None:
    assert passes("a = 1") == []


# -- random expressions against an evaluator without columns

NAMES = ("a", "b", "TAGS")
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1.25, 2.0]))
TEXTS = st.sampled_from(["", "x", "xy", "1", "2.0", "it's", "true", "FALSE"])
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TESTS: dict[str, Callable[[str, str], bool]] = {
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
Truth = bool | None
Expression = tuple[str, Callable[[Properties], Truth]]


def number_of(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def compare(sign: str, value: str | None, constant: float | str) -> Truth:
    left = value if isinstance(constant, str) else number_of(value)
    return None if left is None else SIGNS[sign](left, constant)


def negate(truth: Truth) -> Truth:
    return None if truth is None else not truth


def conjoin(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def quote(constant: float | str) -> str:
    return "'" + constant.replace("'", "''") + "'" if isinstance(constant, str) else str(constant)


@st.composite
def predicates(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(NAMES))
    maybe_not = draw(st.sampled_from(["", "not "]))
    turn = negate if maybe_not else lambda truth: truth
    kind = draw(st.sampled_from(["compare", "between", "in", "test", "null"]))
    if kind == "compare":
        sign, constant = draw(st.sampled_from(sorted(SIGNS))), draw(st.one_of(NUMBERS, TEXTS))
        return f"{name} {sign} {quote(constant)}", lambda own: compare(sign, own.get(name), constant)
    if kind == "between":
        low, high = draw(NUMBERS), draw(NUMBERS)
        return f"{name} {maybe_not}between {low} and {high}", lambda own: turn(
            conjoin(compare(">=", own.get(name), low), compare("<=", own.get(name), high))
        )
    if kind == "in":
        texts = draw(st.lists(TEXTS, min_size=1, max_size=3))
        listed = ", ".join(map(quote, texts))
        return f"{name} {maybe_not}in ({listed})", lambda own: turn(own[name] in texts if name in own else None)
    if kind == "test":
        word, text = draw(st.sampled_from(sorted(TESTS))), draw(TEXTS)
        return f"{name} {maybe_not}{word} {quote(text)}", lambda own: turn(
            TESTS[word](own[name], text) if name in own else None
        )
    return f"{name} is {maybe_not}null", lambda own: (name in own) is bool(maybe_not)


def combine(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def join(word: str, parts: list[Expression]) -> Expression:
        (left, left_truth), (right, right_truth) = parts
        if word == "and":
            return f"({left}) and ({right})", lambda own: conjoin(left_truth(own), right_truth(own))
        return f"({left}) or ({right})", lambda own: negate(conjoin(negate(left_truth(own)), negate(right_truth(own))))

    pairs = st.builds(join, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=2))
    return pairs | inner.map(lambda one: (f"not ({one[0]})", lambda own: negate(one[1](own))))


MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["x", "xy", "1", "2.0", "-3", "it's", "true", "é"])),
    min_size=1,
    max_size=6,
)


@given(st.recursive(predicates(), combine, max_leaves=6), MESSAGES)
def test_random_expression_matches_plain_evaluator(expression: Expression, messages: list[Properties]) -> None:
    text, truth = expression
    assert passes(text, *messages) == [truth(own) is True for own in messages]


@pytest.mark.parametrize(
    "literal", ["9" * 309, "-" + "9" * 400, "9" * 4_500, "1e309", "-1e999", "9" * 309 + ".0", "9" * 309 + "L"]
)
@pytest.mark.parametrize("expression", ["a > {}", "{} < a", "a in ({})", "a between 1 and {}", "1 < {}"])
def test_number_beyond_double_range_is_refused(literal: str, expression: str) -> None:
    """Cover fault 13.22: such a number raised OverflowError."""
    with pytest.raises(InvalidInput) as caught:
        compile_sql(expression.format(literal))
    assert caught.value.field == "expression"


def test_number_at_end_of_double_range_is_accepted() -> None:
    compile_sql(f"a > {'9' * 308} and a < 1e308")
