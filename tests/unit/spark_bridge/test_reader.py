"""What a read is told is checked before anything is planned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.bounded_read import check_topics, select


@pytest.mark.parametrize("tags", [5, ["a"], b"a", "", True])
def test_tags_are_text(tags: Any) -> None:
    with pytest.raises(InvalidInput, match="tags"):
        select(None, "json", None, tags, None)


@pytest.mark.parametrize("topics", [5, None, [], "", ["t", "t"], [""], {"t": 1}])
def test_topics_are_names_each_once(topics: Any) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        check_topics(topics)


@pytest.mark.parametrize("topics", [[5], [["t"]], b"t"])
def test_a_topic_that_is_no_text_is_a_type_error_as_everywhere(topics: Any) -> None:
    with pytest.raises(TypeError, match="topic must be str"):
        check_topics(topics)


def test_one_topic_or_several() -> None:
    assert check_topics("t") == ["t"]
    assert check_topics(("t", "u")) == ["t", "u"]
