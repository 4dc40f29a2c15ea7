"""Half of a surrogate pair, which no answer can say, is refused where it comes in: nobody else's answer fails by it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire import error_codec, incremental_json, json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import LENGTH, Command, decode
from raymq.actors.wire.incremental_json import read_object_steps
from raymq.storage.cooperative_steps import run_steps

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HALVES = [r"x\ud800", r"\uDFFFx", r"\ud83d \ude00", r"\ude00\ud83d", r"\\\ud800"]
WHOLE = [r"\ud83d\ude00", r"\\ud800", "\U0001f600", r"\u00e9", r"\ud7ff", r"\ue000"]


@pytest.mark.parametrize("text", HALVES)
@pytest.mark.parametrize("shape", ['{"a":"%s"}', '{"%s":1}', '{"a":[{"b":["%s"]}]}'])
def test_a_body_with_half_a_pair_is_refused(text: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (shape % text).encode()
    with pytest.raises(InvalidInput, match="surrogate"):
        json_body.read_object(body)
    monkeypatch.setattr(incremental_json, "_STEP_CHARACTERS", 2)
    for piece in ("[{\\[][^{}\\[\\]]*[}\\]]", "^$"):
        monkeypatch.setattr(incremental_json, "_short", re.compile(piece).match)
        with pytest.raises(InvalidInput, match="surrogate"):
            run_steps(read_object_steps(body))


@pytest.mark.parametrize("text", WHOLE)
def test_whole_characters_are_read_however_they_are_written(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'{{"a":{{"{text}":"{text}"}}}}'.encode()
    assert json_body.read_object(body) == json.loads(body)
    monkeypatch.setattr(incremental_json, "_STEP_CHARACTERS", 2)
    assert run_steps(read_object_steps(body)) == json.loads(body)


@pytest.mark.parametrize("length", [1, 60_000])
def test_bytes_that_are_half_a_pair_are_no_utf_8(length: int) -> None:
    body = b'{"' + b"a" * length + b'":"\xed\xa0\x80"}'
    with pytest.raises(InvalidInput):
        run_steps(read_object_steps(body))


@pytest.mark.parametrize("text", WHOLE)
def test_a_header_of_whole_characters_is_served(text: str) -> None:
    head = f'{{"code":34,"extFields":{{"a":"{text}"}}}}'.encode()
    command = decode(LENGTH.pack(len(head)) + head)
    assert command.half == ""
    assert command.fields == json.loads(head)["extFields"]


def test_what_is_answered_does_not_fail_by_what_an_older_file_held() -> None:
    request = Command(38)
    assert json_body.answer(request, {"a": "x\ud800"}).body == b'{"a":"x?"}'
    assert b"".join(run_steps(json_body.object_steps([("\ud800", "\udfff")] * 3, 2))) == b'{"?":"?","?":"?","?":"?"}'
    assert json_body.object_response(request, {"\ud800": [json_body.json_bytes("\udfff")]}).pieces == [
        b'{"?":',
        b'"?"',
        b"}",
    ]


async def ask(stream: Stream, request: Command, header: str) -> Command:
    """The answer to a request whose JSON header is written as it is given, after code and opaque."""
    head = f'{{"code":{request.code:d},"opaque":1,"flag":0,"version":400,{header}}}'.encode()
    length = LENGTH.size + len(head) + len(request.body)
    stream[1].write(LENGTH.pack(length) + LENGTH.pack(len(head)) + head + bytes(request.body))
    (length,) = LENGTH.unpack(await stream[0].readexactly(LENGTH.size))
    return decode(await stream[0].readexactly(length))


@pytest.mark.parametrize(
    "header",
    [
        r'"language":"x\ud800"',
        r'"language":"JAVA","remark":"x\ud800"',
        r'"language":"JAVA","extFields":{"brokerName":"x\ud800","brokerAddr":"h:1","clusterName":"c","brokerId":"0"}',
        r'"language":"JAVA","extFields":{"x\ud800":"y"}',
    ],
)
async def test_a_header_with_half_a_pair_is_refused_and_its_connection_serves_on(header: str, tmp_path: Path) -> None:
    """A broker's name of such text kept every client from the cluster's info and the routes."""
    service = await NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0))
    host, port = service.address.rsplit(":", 1)
    stream = await asyncio.open_connection(host, int(port))
    topic = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"t": topic}}}).encode()
    good = '"language":"JAVA","extFields":{"brokerName":"b","brokerAddr":"h:1","clusterName":"c","brokerId":"0"}'
    register = Command(RequestCode.REGISTER_BROKER, body=body)
    try:
        refused = await ask(stream, register, header)
        assert isinstance(error_codec.error_from_response(refused), InvalidInput)
        assert (await ask(stream, register, good)).code == ResponseCode.SUCCESS
        told = await ask(stream, Command(RequestCode.GET_BROKER_CLUSTER_INFO), '"language":"JAVA"')
        assert list(json_body.read_answer(told.body)["brokerAddrTable"]) == ["b"]
    finally:
        stream[1].close()
        await service.stop()
