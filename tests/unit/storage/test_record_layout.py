"""Test that NumPy's headers and the compiled code have the layout of `record`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raymq.storage.records import columnar_encoder, record
from raymq.storage.records.record import header_dtype

#: Names in the compiled code that are not AT_X for an OFFSET_X of `record`.
NAMES = {
    "LEAST_TAIL": record.LEAST_TAIL,
    "STORE_HOST_BYTES": record.STORE_TIMESTAMP_AND_HOST.size - record.STORE_TIMESTAMP.size,
    "MAGIC_V1": record.MAGIC_V1,
    "MAGIC_V2": record.MAGIC_V2,
    "PREPARED": record.SYS_FLAG_TRANSACTION_PREPARED,
    "BORN_IPV6": record.SYS_FLAG_BORN_IPV6,
    "STORE_IPV6": record.SYS_FLAG_STORE_IPV6,
    "IPV6_SHIFT": record.IPV6_SHIFT,
    "CRC_MASK": record.CRC_MASK,
    "MAX_PROPERTIES": record.MAX_PROPERTIES_BYTES,
    "SECTOR": record.SECTOR_BYTES,
    "NAME_END": record.encode_properties({"n": "v"})[1],
    "PAIR_END": record.encode_properties({"n": "v"})[3],
}


def compiled_layout(repository: Path) -> dict[str, int]:
    text = (repository / "native" / "raymq_native" / "layout.pxi").read_text(encoding="utf-8")
    return {name: int(value, 0) for name, value in re.findall(r"^    (\w+) = (\S+)$", text, re.MULTILINE)}


def test_compiled_code_has_the_layout_of_the_codec(repository: Path) -> None:
    layout = compiled_layout(repository)
    assert len(layout) > 20
    for name, value in layout.items():
        expected = getattr(record, f"OFFSET_{name.removeprefix('AT_')}") if name.startswith("AT_") else NAMES[name]
        assert value == expected, name


def test_compiled_code_defines_the_layout_once(repository: Path) -> None:
    names = set(compiled_layout(repository))
    for source in (repository / "native" / "raymq_native").glob("*.pyx"):
        said = re.findall(r"^    (\w+) = ", source.read_text(encoding="utf-8"), re.MULTILINE)
        assert not names & set(said), f"{source.name} says again what layout.pxi says"


def test_numpy_header_has_the_layout_of_the_codec() -> None:
    whole = header_dtype()
    assert whole == columnar_encoder._HEADER
    assert whole.itemsize == record.HEADER.size == record.OFFSET_BODY
    assert whole.fields is not None
    assert sum(kind.itemsize for kind, _ in whole.fields.values()) == record.HEADER.size, "a byte is in no field"
    for name, (_, offset) in whole.fields.items():
        assert offset == getattr(record, f"OFFSET_{name.upper()}")


@pytest.mark.parametrize("fields", [("size",), ("store_host", "magic"), ("queue_offset", "body_length")])
def test_partial_header_keeps_field_offsets(fields: tuple[str, ...]) -> None:
    some, whole = header_dtype(fields), header_dtype()
    assert some.itemsize == whole.itemsize
    assert some.fields is not None
    assert whole.fields is not None
    assert {name: some.fields[name] for name in fields} == {name: whole.fields[name] for name in fields}
