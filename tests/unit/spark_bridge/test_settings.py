"""Test Spark settings that a user gives."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.session_settings import check_user_settings, merge_settings


def test_user_settings_override_defaults() -> None:
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


def test_user_java_options_are_appended_to_defaults() -> None:
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
def test_reserved_and_malformed_settings_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_user_settings(given)
    assert caught.value.field == "settings"


def test_memory_setting_error_names_the_memory_argument() -> None:
    with pytest.raises(InvalidInput, match="use memory="):
        check_user_settings({"spark.executor.memory": "2g"})
