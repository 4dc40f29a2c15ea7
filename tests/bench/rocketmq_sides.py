"""RocketMQ in controller mode with two brokers in sync, beside a broker of one copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.bench.command_program import CommandProgram
from tests.bench.foreign import ROOT, rocketmq_jars
from tests.bench.foreign_servers import free_port, running
from tests.bench.sides import ExternalSide, Place, Places, Side

_SENDS: Final = ROOT / "tests" / "bench" / "rocketmq" / "Sends.java"
_OPENED: Final = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
_BROKER: Final[Mapping[str, object]] = {
    "brokerClusterName": "bench",
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": 1 << 28,
    "diskMaxUsedSpaceRatio": 95,
    # Four batches wait for one another: by its default it refuses what waits for 0.2 s.
    "waitTimeMillsInSendQueue": 30_000,
}
_IN_SYNC: Final[Mapping[str, object]] = {
    "enableControllerMode": "true",
    "brokerRole": "SLAVE",
    "brokerId": -1,
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "allAckInSyncStateSet": "true",
}


@contextmanager
def rocketmq_sides(places: Places, folder: Path) -> Iterator[list[Side]]:
    """Its client is its own, in Java. The master of one copy is on the same machine as that of two."""
    jars = rocketmq_jars()
    clients, first, second = places.clients, places.brokers[0], places.brokers[1]
    name_server, controller = (f"{clients.address}:{free_port()}" for _ in range(2))
    with ExitStack() as stack:

        def started(place: Place, main: str, name: str, settings: Mapping[str, object]) -> int:
            file = folder / f"{name}.conf"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            command = [*place.inside, *java_command(jars, folder, name), main, "-c", str(file)]
            return stack.enter_context(
                running(command, lambda: None, {"ROCKETMQ_HOME": str(folder)}, is_one_of_many=True)
            )

        def broker(place: Place, group: str, name: str, extra: Mapping[str, object]) -> int:
            at = {"brokerName": group, "brokerIP1": place.address, "brokerIP2": place.address}
            ports = {"listenPort": free_port(), "haListenPort": free_port(), "namesrvAddr": name_server}
            store = {"storePathRootDir": folder / name, "storePathCommitLog": folder / name / "commitlog"}
            settings = {**_BROKER, **at, **ports, **store, **extra}
            return started(place, "org.apache.rocketmq.broker.BrokerStartup", name, settings)

        started(
            clients,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "names",
            {
                "listenPort": name_server.rpartition(":")[2],
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": f"n0-{controller}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": folder / "controller",
            },
        )
        one = broker(first, "broker-one", "one", {"brokerRole": "ASYNC_MASTER", "brokerId": 0})
        in_sync = {**_IN_SYNC, "controllerAddr": controller}
        master = broker(first, "broker-all", "all1", in_sync)
        command = [*java_command(jars, folder, "client"), str(_SENDS), name_server, controller]
        client = stack.enter_context(CommandProgram(command, folder, folder / "client.log"))
        replica = broker(second, "broker-all", "all2", in_sync)
        client.tell("replicas 2")
        client.answer()
        yield [
            ExternalSide("RocketMQ, one copy", 1, {"master": one}, client, "one"),
            ExternalSide(
                "RocketMQ, controller mode, 2 in sync", 2, {"master": master, "replica": replica}, client, "all"
            ),
        ]


def java_command(jars: str, folder: Path, name: str, heap: str = "1g") -> list[str]:
    """What begins a command that runs a class of RocketMQ's, with a home of this name in the folder."""
    home = folder / f"home-{name}"
    home.mkdir()
    opened = [part for each in _OPENED for part in ("--add-opens", f"{each}=ALL-UNNAMED")]
    return ["java", f"-Xmx{heap}", *opened, f"-Duser.home={home}", "-cp", f"{jars}/*"]
