"""Test that a single record is checked like one of many."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.log.record_checker import CheckedRecord, RecordChecker
from tests.store_records import make_record

pytestmark = pytest.mark.usefixtures("batch_code")

RECORDS = {
    "bare": make_record(),
    "key": make_record(unique_key="U1"),
    "all": make_record(b"x" * 50, tags="red", keys="k1 k2", unique_key="U1", queue_id=3),
    "born at IPv6": make_record(unique_key="U1", born_host=("2001:db8::7", 5)),
    "long topic": make_record(topic="%RETRY%" + "t" * 130, unique_key="U1"),
    "empty body": make_record(b"", unique_key="U1"),
    "prepared": make_record(unique_key="U1", sys_flag=4),
    "too large": make_record(b"x" * 200, unique_key="U1"),
}


def check_result(call: object) -> object:
    """Return the record's parts, or the error that the check raised."""
    assert callable(call)
    try:
        single: CheckedRecord = call()
    except InvalidInput as error:
        return error.field, error.limit, str(error.actual)
    return bytes(single.record), *single[1:]


@pytest.mark.parametrize("zeros", [1, 600])
def test_zero_bytes_in_long_properties_are_refused(zeros: int) -> None:
    # Recovery must be able to tell properties from a sector that was not written.
    checker = RecordChecker(100, 1 << 16)
    checker.one(memoryview(RECORDS["key"]), True)
    sound = make_record(unique_key="U1", keys="k" * 600)
    bad = make_record(unique_key="U1", keys="k" * (600 - zeros) + "\0" * zeros)
    for records in ([bad], [bad, sound], [sound, bad], [*[sound] * 100, bad]):
        sizes = np.array([len(record) for record in records], np.int32)
        for check in (checker._few, checker._many):
            with pytest.raises(InvalidInput, match=rf"record {records.index(bad)}: properties without"):
                check(memoryview(b"".join(records)), sizes, True)
    with pytest.raises(InvalidInput, match="record 0: properties without"):
        checker.one(memoryview(bad), True)
    checker.one(memoryview(sound), True)


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("name", RECORDS)
def test_single_check_equals_batch_check_of_damaged_records(name: str, check_crc: bool) -> None:
    record = RECORDS[name]
    checker = RecordChecker(100, 1 << 16)
    checker.one(memoryview(RECORDS["key"]), True)  # its topic is known from now on
    variants = [record, record + b"x", *(record[:end] for end in range(len(record)))]
    for at in range(len(record)):
        flipped = (bytes([record[at] ^ bits]) for bits in (0x01, 0x20, 0x80, 0xFF))
        variants += [record[:at] + byte + record[at + 1 :] for byte in flipped]
    for variant in variants:
        alone = check_result(lambda: checker.one(memoryview(variant), check_crc))  # noqa: B023 - called at once
        sizes = np.array([len(variant)], np.int32)
        assert alone == check_result(lambda: checker._few(memoryview(variant), sizes, check_crc)[0])  # noqa: B023
