"""Settings of Spark that a user gives."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.session_settings import check_user_settings, merge_settings


def test_a_users_settings_count_more_than_ours() -> None:
    own = {"spark.ui.enabled": "false", "spark.local.dir": "/x"}
    users = check_user_settings(
        {"spark.ui.enabled": True, "spark.task.maxFailures": 7, "spark.speculation.quantile": 0.5}
    )
    assert merge_settings(own, users) == {
        "spark.ui.enabled": "true",
        "spark.local.dir": "/x",
        "spark.task.maxFailures": "7",
        "spark.speculation.quantile": "0.5",
    }


def test_options_of_java_stand_behind_ours() -> None:
    own = {"spark.executor.extraJavaOptions": "-Da=1"}
    users = check_user_settings({"spark.executor.extraJavaOptions": "-Db=2", "spark.driver.extraJavaOptions": "-Dc=3"})
    assert merge_settings(own, users) == {
        "spark.executor.extraJavaOptions": "-Da=1 -Db=2",
        "spark.driver.extraJavaOptions": "-Dc=3",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"spark.executor.memory": "2g"},
        {"spark.executor.instances": 3},
        {"spark.master": "local"},
        {"spark.python.daemon.module": "mine"},
        {"spark.ray.raydp_spark_executor.actor.resource.cpu": 1},
        {"raymq.x": "1"},
        {7: "1"},
        {"spark.x": None},
        {"spark.x": ["1"]},
        ["spark.x"],
        "spark.x=1",
    ],
    ids=repr,
)
def test_what_the_bridge_makes_itself_and_what_is_none_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_user_settings(given)
    assert caught.value.field == "settings"


def test_who_wants_more_memory_is_told_how() -> None:
    with pytest.raises(InvalidInput, match="use memory="):
        check_user_settings({"spark.executor.memory": "2g"})
