"""Test that requests with unpaired surrogates are refused, because no answer can encode them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire import error_codec, json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import LENGTH, Command, decode

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
UNPAIRED = [r"x\ud800", r"\uDFFFx", r"\ud83d \ude00", r"\ude00\ud83d", r"\\\ud800"]
VALID = [r"\ud83d\ude00", r"\\ud800", "\U0001f600", r"\u00e9", r"\ud7ff", r"\ue000"]


@pytest.mark.parametrize("text", UNPAIRED)
@pytest.mark.parametrize("shape", ['{"a":"%s"}', '{"%s":1}', '{"a":[{"b":["%s"]}]}'])
def test_body_with_unpaired_surrogate_is_refused(text: str, shape: str) -> None:
    with pytest.raises(InvalidInput):
        json_body.read_object((shape % text).encode())


@pytest.mark.parametrize("text", VALID)
def test_surrogate_pairs_and_escapes_are_parsed(text: str) -> None:
    body = f'{{"a":{{"{text}":"{text}"}}}}'.encode()
    assert json_body.read_object(body) == json.loads(body)


@pytest.mark.parametrize("length", [1, 60_000])
def test_utf8_encoded_surrogate_is_refused(length: int) -> None:
    body = b'{"' + b"a" * length + b'":"\xed\xa0\x80"}'
    with pytest.raises(InvalidInput):
        json_body.read_object(body)


@pytest.mark.parametrize("text", VALID)
def test_header_with_surrogate_pair_is_parsed(text: str) -> None:
    head = f'{{"code":34,"extFields":{{"a":"{text}"}}}}'.encode()
    command = decode(LENGTH.pack(len(head)) + head)
    assert command.half == ""
    assert command.fields == json.loads(head)["extFields"]


def test_answer_replaces_unpaired_surrogates_of_old_files() -> None:
    request = Command(38)
    assert json_body.answer(request, {"a": "x\ud800"}).body == b'{"a":"x?"}'
    assert json_body.encode({"\ud800": ["\udfff"]}) == b'{"?":["?"]}'


async def send_request(stream: Stream, request: Command, header: str) -> Command:
    """Send a request with this JSON header text after code and opaque; return the answer."""
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
async def test_unpaired_surrogate_in_header_keeps_connection_open(header: str, tmp_path: Path) -> None:
    """Guard against a broker name that made cluster info and routes unreadable for every client."""
    service = await NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0))
    host, port = service.address.rsplit(":", 1)
    stream = await asyncio.open_connection(host, int(port))
    topic = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"t": topic}}}).encode()
    good = '"language":"JAVA","extFields":{"brokerName":"b","brokerAddr":"h:1","clusterName":"c","brokerId":"0"}'
    register = Command(RequestCode.REGISTER_BROKER, body=body)
    try:
        refused = await send_request(stream, register, header)
        assert isinstance(error_codec.error_from_response(refused), InvalidInput)
        assert (await send_request(stream, register, good)).code == ResponseCode.SUCCESS
        cluster_info = await send_request(stream, Command(RequestCode.GET_BROKER_CLUSTER_INFO), '"language":"JAVA"')
        assert list(json_body.read_answer(cluster_info.body)["brokerAddrTable"]) == ["b"]
    finally:
        stream[1].close()
        await service.stop()
