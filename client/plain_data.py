"""Convert results to the data that JSON has, with the Python API's field names."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any


def to_plain_data(value: Any) -> Any:
    """Convert dataclasses, named tuples, enums and tuples to JSON types.

    A number that is not finite becomes None: JSON has none.
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain_data(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
