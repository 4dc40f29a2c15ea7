"""Test queries by key on golden directories: RocketMQ's answers and all differences from them.

RocketMQ's index has candidates; its `queryMessage` returns them, its client drops what does not match. Our store
compares topic, key and time itself. So an answer of ours is RocketMQ's without

- messages of another key or topic whose hash is equal (`Aa` and `BB`),
- second mentions of the same message (a key that stands twice in KEYS is indexed twice),
- messages stored outside of begin..end: RocketMQ's index knows whole seconds only,

newest first instead of oldest first, and with what RocketMQ's limit on candidates had cut off.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.store import Store
from tests import golden_stores as golden
from tests.golden_stores import Answers


def places(
    store: Store, topic: str, key: str, begin: int = 0, end: int = golden.FOREVER_MS, limit: int = 64
) -> list[int]:
    return [record.physical_offset for record in store.query(topic, key, begin, end, limit)]


def indexed_keys(message: Answers) -> set[str]:
    """Return the keys by which RocketMQ's index knows the message.

    The own unique key of a batch's member is not among them.
    """
    return {message["unique_key"], *message["properties"].get("KEYS", "").split(" ")} - {None, ""}


def test_query_answers_differ_from_rocketmqs_only_as_documented(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    by_place = {message["physical_offset"]: message for message in expected["messages"]}
    differing = 0
    for request in expected["queries"]["by_key"]:
        topic, key, begin, end, limit = (request[name] for name in ("topic", "key", "begin", "end", "max"))
        found = places(store, topic, key, begin, end, limit)
        right = [
            message["physical_offset"]
            for message in reversed(expected["messages"])
            if message["topic"] == topic and key in indexed_keys(message) and begin <= message["store_timestamp"] <= end
        ]
        assert found == right[:limit]
        theirs = request["index_order"]
        assert request["store_order"] == sorted(place for place in theirs if place in by_place)
        for place in set(theirs) - set(found):
            message = by_place.get(place)
            deleted = message is None
            foreign = message is not None and (message["topic"] != topic or key not in indexed_keys(message))
            outside = message is not None and not begin <= message["store_timestamp"] <= end
            assert deleted or foreign or outside
        if set(found) - set(theirs):
            # RocketMQ's limit counts candidates, and its times are whole seconds.
            assert len(theirs) == limit or not (begin == 0 and end == golden.FOREVER_MS)
        if begin == 0 and end == golden.FOREVER_MS and len(theirs) < limit:
            mine = [place for place in theirs if place in found]
            assert list(dict.fromkeys(mine)) == found
        differing += found != theirs
    assert differing < len(expected["queries"]["by_key"])


def test_message_is_found_by_each_of_its_keys(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    pairs = 0
    for message in expected["messages"]:
        keys = indexed_keys(message)
        for key in keys:
            assert golden.is_found_by(store, key, message)
        pairs += len(keys)
    assert (expected["index_check"]["keys"], expected["index_check"]["missing"]) == (pairs, 0)


def test_keys_of_equal_hash_are_distinguished(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    for topic in {message["topic"] for message in expected["messages"]}:
        for key, other in (("Aa", "BB"), ("BB", "Aa")):
            found = {record.physical_offset for record in store.query(topic, key, 0, golden.FOREVER_MS, 1000)}
            with_key = {
                m["physical_offset"] for m in expected["messages"] if m["topic"] == topic and key in indexed_keys(m)
            }
            assert found == with_key
            only_other = {m["physical_offset"] for m in expected["messages"] if other in indexed_keys(m)} - with_key
            assert not found & only_other


def test_time_window_is_exact_to_the_millisecond(opened: tuple[Store, Answers]) -> None:
    # RocketMQ's own index finds nothing in most windows of one millisecond.
    store, expected = opened
    for message in expected["messages"][::7]:
        at = message["store_timestamp"]
        for key in indexed_keys(message):
            assert message["physical_offset"] in places(store, message["topic"], key, at, at, 1000)
            assert message["physical_offset"] not in places(
                store, message["topic"], key, at + 1, golden.FOREVER_MS, 1000
            )
            assert message["physical_offset"] not in places(store, message["topic"], key, 0, at - 1, 1000)


@pytest.mark.parametrize("name", ["clean", "killed", "trimmed"])
def test_rebuilt_index_has_the_unique_keys_of_batch_members(tmp_path: Path, name: str) -> None:
    # RocketMQ's index has only the batch's key: a query by the key that the sender got finds nothing there.
    directory = golden.unpack(name, tmp_path)
    expected = golden.answers(name)
    for path in (directory / "index").iterdir():
        path.unlink()
    members = [message for message in expected["messages"] if golden.own_unique_key(message) != message["unique_key"]]
    assert members
    with Store.open(directory, golden.config(name)) as store:
        for message in expected["messages"]:
            for key in golden.keys_of(message):
                assert golden.is_found_by(store, key, message)
        for message in members:
            own = golden.own_unique_key(message)
            assert own is not None
            assert places(store, message["topic"], own) == [message["physical_offset"]]
