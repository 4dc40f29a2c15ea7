"""Test that body values of the wrong type are refused as invalid parameters, not as Python errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import QueryDataVersion, RegisterBroker
from raymq.client import Admin, Connection
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient

#: The other fields of a request, and the name of the field under test.
BODIES: dict[RequestCode, tuple[dict[str, Any], str]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, "groupName"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: ({"consumerGroup": "g", "mode": "POP"}, "topic"),
    RequestCode.QUERY_ASSIGNMENT: ({"topic": "t"}, "consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: ({"clientId": "c", "mqSet": []}, "consumerGroup"),
    RequestCode.UNLOCK_BATCH_MQ: ({"clientId": "c", "mqSet": []}, "consumerGroup"),
}
OTHERS = [None, 7, 1.5, True, {}, ["t"]]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    process = BrokerProcess("broker-a", Path(tmp_path_factory.mktemp("types")))
    with Connection([process.name_server]) as mq:
        (broker,) = Admin(mq).cluster_info().brokers
        assert broker.address is not None
        yield broker.address, process.name_server
    process.stop()


def is_refused(address: str, command: Command, field: str) -> bool:
    with ForeignClient(address) as client:
        answer = client.ask(command)
    return answer.code == ResponseCode.INVALID_PARAMETER and (answer.remark or "").startswith(field)


@pytest.mark.parametrize("code", list(BODIES), ids=lambda code: code.name)
def test_non_string_name_is_refused(addresses: tuple[str, str], code: RequestCode) -> None:
    fields, name = BODIES[code]
    for other in OTHERS:
        assert is_refused(addresses[0], Command(code, body=json.dumps({**fields, name: other}).encode()), name), other


def test_non_string_name_in_list_is_refused(addresses: tuple[str, str]) -> None:
    for other in OTHERS:
        body = json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": other}]}).encode()
        assert is_refused(addresses[0], Command(RequestCode.HEART_BEAT, body=body), "groupName"), other
        body = json.dumps({"topicConfigList": [{"topicName": other}]}).encode()
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert is_refused(addresses[0], command, "topicName"), other


def test_non_numeric_data_version_is_refused(addresses: tuple[str, str]) -> None:
    for other in (None, {}, [], "x", float("inf")):
        command = QueryDataVersion("c", "b", 0, "127.0.0.1:1").command()
        command.body = json.dumps({"counter": other}).encode()
        field = "body" if other == float("inf") else "dataVersion"  # Infinity is no JSON
        assert is_refused(addresses[1], command, field), other


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ], ids=lambda code: code.name)
@pytest.mark.parametrize("number", ["1e999", "-1e999", "null", '"x"', "[]"])
def test_non_numeric_queue_id_is_refused(addresses: tuple[str, str], code: RequestCode, number: str) -> None:
    queue = f'{{"topic":"t","brokerName":"broker-a","queueId":{number}}}'
    body = f'{{"clientId":"c","consumerGroup":"g","mqSet":[{queue}]}}'
    field = "body" if number.endswith("1e999") else "mqSet"  # no number has this value
    assert is_refused(addresses[0], Command(code, body=body.encode()), field)


@pytest.mark.parametrize("number", ["1e999", "{}", '"x"'])
def test_registration_with_non_numeric_version_is_refused(addresses: tuple[str, str], number: str) -> None:
    command = RegisterBroker("c", "b", 0, "127.0.0.1:1").command()
    wrapper = f'{{"topicConfigTable":{{}},"dataVersion":{{"counter":{number}}}}}'
    command.body = f'{{"topicConfigSerializeWrapper":{wrapper}}}'.encode()
    assert is_refused(addresses[1], command, "body" if number == "1e999" else "registration")
