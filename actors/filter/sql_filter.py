"""SQL92 expressions over message properties, compiled once and applied to batches of records.

The language is RocketMQ's: = <> < <= > >=, [NOT] BETWEEN, [NOT] IN, IS [NOT] NULL, [NOT] CONTAINS / STARTSWITH /
ENDSWITH, AND, OR, NOT, numbers, 'texts' ('' is a quote), TRUE, FALSE. Names are properties, TAGS and KEYS among them.

The logic is SQL's with three values: a comparison with a missing property is neither true nor false, and a message
passes only if the expression is true. Properties are texts. A property that is compared with a number counts as a
number, or as missing if it is not numeric. A property that is compared with a text is compared as text, by code points.
Two properties are compared as numbers if both are numeric, else as texts. A name that stands alone is compared with
TRUE. NOT binds weaker than a comparison, AND weaker than NOT, OR weakest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lark import Lark, Token, Transformer, UnexpectedInput, v_args

from raymq.actors.filter.lru_cache import LRUCache
from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.errors import InvalidInput
from raymq.storage.records.property_columns import PropertyColumns, properties_of_records
from raymq.storage.records.record import Buffer

MAX_CHARACTERS: Final = 8_192
#: The most characters of all cached expressions.
_KEPT_CHARACTERS: Final = 32 * MAX_CHARACTERS
#: Tokens per step of parsing.
_TOKENS_AT_ONCE: Final = 200
#: The deepest nesting of conditions.
MAX_DEPTH: Final = 64

_GRAMMAR: Final = r"""
?start: any
?any: all
    | all (_OR all)+                                                -> any_of
?all: negation
    | negation (_AND negation)+                                     -> all_of
?negation: predicate
    | NOT negation                                                  -> negated
?predicate: primary
    | primary COMPARISON primary                                    -> compared
    | primary [NOT] _BETWEEN primary _AND primary                   -> between
    | primary [NOT] _IN "(" constant ("," constant)* ")"            -> among
    | primary [NOT] TEXT_TEST STRING                                -> text_test
    | primary _IS [NOT] NULL                                        -> is_null
?primary: constant
    | NAME                                                          -> property
    | "(" any ")"
?constant: STRING                                                   -> text
    | [SIGN] NUMBER                                                 -> number
    | (TRUE | FALSE)                                                -> truth
COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
SIGN: "+" | "-"
STRING: /'(?:''|[^'])*'/
NUMBER: /(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lL]?/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
_OR.2: /or(?![a-z0-9_$])/i
_AND.2: /and(?![a-z0-9_$])/i
NOT.2: /not(?![a-z0-9_$])/i
_BETWEEN.2: /between(?![a-z0-9_$])/i
_IN.2: /in(?![a-z0-9_$])/i
_IS.2: /is(?![a-z0-9_$])/i
NULL.2: /null(?![a-z0-9_$])/i
TRUE.2: /true(?![a-z0-9_$])/i
FALSE.2: /false(?![a-z0-9_$])/i
TEXT_TEST.2: /(?:contains|startswith|endswith)(?![a-z0-9_$])/i
%ignore /[ \t\r\n\f]+/
"""

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
#: Integers that surely fit into 64 bits are compared as integers, because a double has only 53 bits of precision.
_INTEGER: Final = r"^-?[0-9]{1,18}$"
_MAX_INTEGER: Final = 10**18

#: The truth value of each record of a batch: a boolean array, with null for neither true nor false.
TruthMask = Any
_COMPARISONS: Final[dict[str, tuple[Callable[..., TruthMask], Callable[[Any, Any], bool]]]] = {
    "=": (pc.equal, operator.eq),
    "<>": (pc.not_equal, operator.ne),
    "<": (pc.less, operator.lt),
    "<=": (pc.less_equal, operator.le),
    ">": (pc.greater, operator.gt),
    ">=": (pc.greater_equal, operator.ge),
}
_TEXT_TESTS: Final[dict[str, Callable[..., TruthMask]]] = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
}


class SqlFilter:
    """A compiled expression; `expression` is its text."""

    def __init__(self, expression: str, condition: _Condition) -> None:
        self.expression = expression
        self._condition = condition

    def mask(self, records: Buffer, sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return a mask of the records for which the expression is true.

        The records are contiguous and valid.
        """
        if not len(sizes):
            return np.zeros(0, np.bool_)
        return self.mask_columns(properties_of_records(records, sizes))

    def mask_columns(self, properties: PropertyColumns) -> npt.NDArray[np.bool_]:
        """Return the same mask for properties that are split already."""
        truths = self._condition.truths(_Columns(properties)).fill_null(False)
        mask: npt.NDArray[np.bool_] = truths.to_numpy(zero_copy_only=False)
        return mask


_known: LRUCache[SqlFilter] = LRUCache(_KEPT_CHARACTERS)


def compile_sql(expression: str) -> SqlFilter:
    """Compile an expression.

    Raises:
        InvalidInput: the expression cannot be parsed, compares values of different types, is too long or nested too
            deep.
    """
    return run_steps(compile_sql_steps(expression))


def compile_sql_steps(expression: str) -> Steps[SqlFilter]:
    """Compile an expression in steps, as `compile_sql`; a cached one takes one step."""
    if len(expression) > MAX_CHARACTERS:
        raise InvalidInput("expression", f"at most {MAX_CHARACTERS} characters", len(expression))
    known = _known.find(expression)
    if known is None:
        compiled = yield from _reading(expression)
        known = _known.get(expression, lambda _: compiled)
    return known


def warm_up() -> None:
    """Create the parser ahead, which takes longer than to parse most expressions.

    It is for callers that must not be blocked by this later.
    """
    _parser()


def _reading(expression: str) -> Steps[SqlFilter]:
    if any(character in expression for character in "\x00\x01\x02"):
        raise InvalidInput("expression", "none of the characters \\x00 \\x01 \\x02", expression)
    at_end = False
    try:
        parsing = _parser().parse_interactive(expression)
        for number, _ in enumerate(parsing.iter_parse(), 1):
            if number % _TOKENS_AT_ONCE == 0:
                yield None
        at_end = True
        return SqlFilter(expression, _as_condition(parsing.feed_eof()))  # type: ignore[no-untyped-call]
    except UnexpectedInput as error:
        place = "at its end" if at_end or error.column < 1 else f"at character {error.column}"
        raise InvalidInput("expression", f"an SQL92 condition; this cannot be read {place}", expression) from None


@dataclass(frozen=True, slots=True)
class _Property:
    name: str


@dataclass(frozen=True, slots=True)
class _Constant:
    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class _Condition:
    truths: Callable[[_Columns], TruthMask]
    depth: int = 1


_Operand = _Property | _Constant
_Node = _Operand | _Condition


class _Columns:
    """Columns of a batch of records by property, each computed once."""

    def __init__(self, properties: PropertyColumns) -> None:
        self._properties = properties
        self._texts: dict[str, Any] = {}
        self._numbers: dict[str, tuple[Any, Any]] = {}

    def constant(self, truth: bool) -> TruthMask:
        return pa.array(np.full(self._properties.count, truth))

    def text(self, name: str) -> Any:
        if name not in self._texts:
            self._texts[name] = self._properties.last(name)
        return self._texts[name]

    def numbers(self, name: str) -> tuple[Any, Any]:
        """Return the property's 64-bit integers, and its numbers as doubles.

        A value that is not such a number is null.
        """
        if name not in self._numbers:
            text, nothing = self.text(name), pa.scalar(None, pa.string())
            whole = pc.if_else(pc.match_substring_regex(text, _INTEGER), text, nothing)
            any_ = pc.if_else(pc.match_substring_regex(text, _NUMBER), pc.utf8_ltrim(text, "+"), nothing)
            self._numbers[name] = whole.cast(pa.int64()), any_.cast(pa.float64())
        return self._numbers[name]

    def truth(self, name: str) -> TruthMask:
        """Return the property as booleans, in any letter case; null for any other text."""
        lower = pc.utf8_lower(self.text(name))
        known = pc.or_(pc.equal(lower, "true"), pc.equal(lower, "false"))
        return pc.if_else(known, pc.equal(lower, "true"), pa.scalar(None, pa.bool_()))


@v_args(inline=True)
class _Compiler(Transformer[Token, _Node]):
    """Makes operands and conditions from the parser's nodes, innermost first."""

    def property(self, name: Token) -> _Node:
        return _Property(str(name))

    def text(self, quoted: Token) -> _Node:
        return _Constant(_unquoted(quoted))

    def number(self, sign: Token | None, digits: Token) -> _Node:
        text = f"{sign or ''}{digits.rstrip('lL')}"
        double = float(text)
        if not math.isfinite(double):
            raise InvalidInput("expression", "numbers that a double can hold", f"one of {len(digits)} characters")
        return _Constant(int(text) if text.lstrip("+-").isdecimal() else double)

    def truth(self, word: Token) -> _Node:
        return _Constant(word.lower() == "true")

    def any_of(self, *nodes: _Node) -> _Node:
        return _joined(pc.or_kleene, nodes)

    def all_of(self, *nodes: _Node) -> _Node:
        return _joined(pc.and_kleene, nodes)

    def negated(self, _: Token, node: _Node) -> _Node:
        return _not(_as_condition(node))

    def compared(self, left: _Node, sign: Token, right: _Node) -> _Node:
        return _compare(_as_operand(left), str(sign), _as_operand(right))

    def between(self, node: _Node, negation: Token | None, low: _Node, high: _Node) -> _Node:
        value = _as_operand(node)
        inside = _joined(
            pc.and_kleene, [_compare(value, ">=", _as_operand(low)), _compare(value, "<=", _as_operand(high))]
        )
        return _not(inside) if negation else inside

    def among(self, node: _Node, negation: Token | None, *constants: _Constant) -> _Node:
        name = _as_property(node).name
        values = [constant.value for constant in constants]
        texts = pa.array([value for value in values if isinstance(value, str)], pa.string())
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        others = [_compare_with(name, "=", truth) for truth in (True, False) if any(truth is value for value in values)]
        if numbers:
            others.append(_Condition(partial(_among_numbers, name, *_sets_of(numbers))))

        def is_text(columns: _Columns) -> TruthMask:
            text = columns.text(name)
            return pc.if_else(text.is_valid(), pc.is_in(text, texts), pa.scalar(None, pa.bool_()))

        found = _joined(pc.or_kleene, [_Condition(is_text), *others])
        return _not(found) if negation else found

    def text_test(self, node: _Node, negation: Token | None, word: Token, quoted: Token) -> _Node:
        name, test, text = _as_property(node).name, _TEXT_TESTS[word.lower()], _unquoted(quoted)
        found = _Condition(lambda columns: test(columns.text(name), text))
        return _not(found) if negation else found

    def is_null(self, node: _Node, negation: Token | None, _: Token) -> _Node:
        name = _as_property(node).name
        if negation:
            return _Condition(lambda columns: columns.text(name).is_valid())
        return _Condition(lambda columns: columns.text(name).is_null())


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler())


def _unquoted(token: Token) -> str:
    return str(token)[1:-1].replace("''", "'")


def _as_condition(node: _Node) -> _Condition:
    if isinstance(node, _Property):
        return _compare(node, "=", _Constant(True))
    if isinstance(node, _Constant):
        if not isinstance(node.value, bool):
            raise InvalidInput("expression", "a condition, not a constant", node.value)
        truth = node.value
        return _Condition(lambda columns: columns.constant(truth))
    return node


def _as_operand(node: _Node) -> _Operand:
    if isinstance(node, _Condition):
        raise InvalidInput("expression", "properties and constants to compare", "a condition")
    return node


def _as_property(node: _Node) -> _Property:
    if not isinstance(node, _Property):
        raise InvalidInput("expression", "a property to test", getattr(node, "value", "a condition"))
    return node


def _joined(join: Callable[[TruthMask, TruthMask], TruthMask], nodes: Sequence[_Node]) -> _Condition:
    conditions = [_as_condition(node) for node in nodes]
    return _Condition(
        lambda columns: reduce(join, (condition.truths(columns) for condition in conditions)),
        _deeper(max(condition.depth for condition in conditions)),
    )


def _not(condition: _Condition) -> _Condition:
    return _Condition(lambda columns: pc.invert(condition.truths(columns)), _deeper(condition.depth))


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise InvalidInput("expression", f"conditions nested at most {MAX_DEPTH} deep", depth + 1)
    return depth + 1


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compare(left: _Operand, sign: str, right: _Operand) -> _Condition:
    if isinstance(left, _Property):
        if isinstance(right, _Property):
            return _Condition(partial(_two_properties, left.name, sign, right.name))
        return _compare_with(left.name, sign, right.value)
    if isinstance(right, _Property):
        return _compare_with(right.name, _MIRRORED.get(sign, sign), left.value)
    for kind in (bool, str):
        if isinstance(left.value, kind) != isinstance(right.value, kind):
            raise InvalidInput("expression", "constants of one kind to compare", right.value)
    truth = _COMPARISONS[sign][1](left.value, right.value)
    return _Condition(lambda columns: columns.constant(truth))


def _compare_with(name: str, sign: str, value: str | float | bool) -> _Condition:
    compare = _COMPARISONS[sign][0]
    if isinstance(value, bool):
        if sign in _MIRRORED:
            raise InvalidInput("expression", "= or <> beside TRUE and FALSE", sign)
        return _Condition(lambda columns: compare(columns.truth(name), value))
    if isinstance(value, str):
        return _Condition(lambda columns: compare(columns.text(name), value))
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return _Condition(partial(_with_integer, name, compare, value))
    double = float(value)
    return _Condition(lambda columns: compare(columns.numbers(name)[1], double))


def _with_integer(name: str, compare: Callable[..., TruthMask], value: int, columns: _Columns) -> TruthMask:
    whole, any_ = columns.numbers(name)
    return pc.coalesce(compare(whole, value), compare(any_, float(value)))


def _sets_of(numbers: Sequence[int | float]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the 64-bit integers, the same as doubles, and all other numbers as doubles."""
    whole = [number for number in numbers if isinstance(number, int) and abs(number) < _MAX_INTEGER]
    others = [float(number) for number in numbers if not (isinstance(number, int) and abs(number) < _MAX_INTEGER)]
    return pa.array(whole, pa.int64()), pa.array(list(map(float, whole)), pa.float64()), pa.array(others, pa.float64())


def _among_numbers(name: str, whole: pa.Array, as_doubles: pa.Array, others: pa.Array, columns: _Columns) -> TruthMask:
    """Return whether the property equals one of the numbers.

    The result is the same as of `=` with each number, in one pass.
    """
    integers, doubles = columns.numbers(name)
    found = pc.if_else(integers.is_valid(), pc.is_in(integers, whole), pc.is_in(doubles, as_doubles))
    return pc.if_else(doubles.is_valid(), pc.or_(found, pc.is_in(doubles, others)), pa.scalar(None, pa.bool_()))


def _two_properties(left: str, sign: str, right: str, columns: _Columns) -> TruthMask:
    compare = _COMPARISONS[sign][0]
    (left_whole, left_any), (right_whole, right_any) = columns.numbers(left), columns.numbers(right)
    return pc.coalesce(
        compare(left_whole, right_whole),
        compare(left_any, right_any),
        compare(columns.text(left), columns.text(right)),
    )
