"""Describe and check settings by the annotations of the dataclasses that hold them.

A setting is a field `name: Annotated[type, describe(...)] = default`. msgspec checks values against the type and its
range; the annotation also has the unit, the meaning and when a change takes effect. `raymq config show`, the
configuration reference and the error messages are made from the same annotations.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

import msgspec
from msgspec import Meta, inspect

from raymq.storage.errors import InvalidInput


class Effect(enum.StrEnum):
    """When a changed setting takes effect."""

    NEXT_START = "after stop and start of the cluster"
    NEW_FILES = "after stop and start of the cluster, for files that are made from then on"
    NEW_CLUSTER = "for a new cluster only: the first start decides"
    AT_ONCE = "after stop and start of the cluster, or at once by `mqadmin updateBrokerConfig`"


def describe(
    description: str, *, unit: str = "", form: str = "", effect: Effect = Effect.NEXT_START, **bounds: Any
) -> Meta:
    """Return the annotation of a setting.

    Args:
        description: what the setting does, as a sentence for users.
        unit: the unit of a number, such as "bytes".
        form: the allowed texts in words, if the type does not define them.
        effect: when a changed value takes effect.
        bounds: msgspec's ge, gt, le, lt, pattern.
    """
    return Meta(description=description, extra={"unit": unit, "form": form, "effect": effect}, **bounds)


#: The types of values of a configuration file.
_PLAIN = (str, bool, int, float, list, tuple, dict, type(None))


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """One setting.

    Attributes:
        name: its key in a configuration file.
        type: its annotated type, for msgspec.
        default: its value if the file does not set it.
        description, unit: as in `describe`.
        effect: when a changed value takes effect.
        allowed: the allowed values, in words.
    """

    name: str
    type: Any
    default: Any
    description: str
    unit: str
    effect: Effect
    allowed: str

    def check(self, value: object) -> None:
        """Raise InvalidInput, which names the setting and its limit, unless `value` is allowed."""
        if isinstance(value, float):
            value = float(value)  # also a subclass of float, such as NumPy's
        if not isinstance(value, _PLAIN):  # msgspec would also take a Decimal for a number, and a set for a list
            raise InvalidInput(self.name, self.allowed, value)
        try:
            msgspec.convert(value, self.type, strict=True)
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise InvalidInput(self.name, self.allowed, value) from None


def settings_of(owner: type[Any]) -> dict[str, SettingSpec]:
    """Return the settings among a dataclass's fields, by name."""
    types = get_type_hints(owner, include_extras=True)
    found = {}
    for field in fields(owner):
        info = inspect.type_info(types[field.name])
        if isinstance(info, inspect.Metadata) and "effect" in (info.extra or {}):
            extra, schema = info.extra or {}, info.extra_json_schema or {}
            default = None if field.default is MISSING else field.default
            allowed = extra["form"] or _in_words(info.type)
            words = schema["description"], extra["unit"], extra["effect"], allowed
            found[field.name] = SettingSpec(field.name, types[field.name], default, *words)
    return found


def check_fields(settings: Mapping[str, SettingSpec], values: object) -> None:
    """Raise InvalidInput for the first setting whose attribute of `values` breaks its rule."""
    for name, setting in settings.items():
        setting.check(getattr(values, name))


def _in_words(info: inspect.Type) -> str:
    """Return the values that a type allows, in words."""
    match info:
        case inspect.Metadata():
            return _in_words(info.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " or ".join(f'"{value}"' for value in info.values)
        case inspect.IntType() | inspect.FloatType():
            words = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            words += f" above {info.gt:g}" if info.gt is not None else f" from {info.ge}" if info.ge is not None else ""
            if info.le is not None:
                words += f" to {info.le}" if info.ge is not None else f", at most {info.le:g}"
            return words
        case inspect.UnionType():
            return ", or ".join(_in_words(each) for each in info.types)
        case inspect.NoneType():
            return "null"
    return "text"
