"""Test that a read's arguments are checked before planning."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.bounded_read import check_topics, select


@pytest.mark.parametrize("tags", [5, ["a"], b"a", "", True])
def test_tags_that_are_not_text_are_refused(tags: Any) -> None:
    with pytest.raises(InvalidInput, match="tags"):
        select(None, "json", None, tags, None)


@pytest.mark.parametrize("topics", [5, None, [], "", ["t", "t"], [""], {"t": 1}])
def test_invalid_or_repeated_topics_are_refused(topics: Any) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        check_topics(topics)


@pytest.mark.parametrize("topics", [[5], [["t"]], b"t"])
def test_topic_that_is_not_text_raises_type_error(topics: Any) -> None:
    with pytest.raises(TypeError, match="topic must be str"):
        check_topics(topics)


def test_one_topic_or_several_are_accepted() -> None:
    assert check_topics("t") == ["t"]
    assert check_topics(("t", "u")) == ["t", "u"]
