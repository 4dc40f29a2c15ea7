"""Run one random history: faults, then recovery, then checks of all guarantees."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, Final

from tests.unit.actors.replication.model.world import KEEPERS, World

#: Faults by name, each for one randomly chosen broker or keeper.
FAULTS: Final[dict[str, Callable[[World, random.Random], None]]] = {}


def _fault(fault: Callable[[World, random.Random], None]) -> Callable[[World, random.Random], None]:
    FAULTS[fault.__name__] = fault
    return fault


def _broker(world: World, chance: random.Random, *, alive: bool = True) -> int | None:
    """Choose a broker that is alive (or dead), a master more often than others."""
    found = [number for number, node in world.brokers.items() if node.process.is_alive == alive]
    masters = [number for number in found if world.brokers[number].leadership is not None]
    return chance.choice(found + masters * 2) if found else None


@_fault
def kill(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        world.kill(number)


@_fault
def lose_power(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        world.lose_power(number)


@_fault
def start(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance, alive=False)) is not None:
        world.start(number)


@_fault
def kill_and_start(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        chance.choice((world.kill, world.lose_power))(number)
        world.run(chance.choice((0.05, 0.5)))
        world.start(number)


@_fault
def stop(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        world.stop(number)


@_fault
def go_on(world: World, chance: random.Random) -> None:
    for number, node in world.brokers.items():
        if node.process.is_stopped:
            world.go_on(number)


@_fault
def cut_off(world: World, chance: random.Random) -> None:
    number = _broker(world, chance)
    if number is not None:
        world.partition({f"b{number}"}, one_way=chance.random() < 0.3)


@_fault
def cut_off_with_a_keeper(world: World, chance: random.Random) -> None:
    number = _broker(world, chance)
    if number is not None:
        world.partition({f"b{number}", f"k{chance.choice(KEEPERS)}", *chance.choice(((), ("client",)))})


@_fault
def cut_between_brokers(world: World, chance: random.Random) -> None:
    one, two = chance.sample(sorted(world.disks), 2)
    world.network.cut |= {(f"b{one}", f"b{two}"), *chance.choice(((), ((f"b{two}", f"b{one}"),)))}


@_fault
def cut_from_the_coordinator(world: World, chance: random.Random) -> None:
    number = _broker(world, chance)
    if number is not None:
        world.network.cut |= {chance.choice(((f"b{number}", "coordinator"), ("coordinator", f"b{number}")))}


@_fault
def mend(world: World, chance: random.Random) -> None:
    world.network.cut.clear()


@_fault
def lose_messages(world: World, chance: random.Random) -> None:
    world.network.loss = chance.choice((0.0, 0.02, 0.1))


@_fault
def flip_bits(world: World, chance: random.Random) -> None:
    world.network.flips = chance.choice((0.0, 0.02))


@_fault
def restart_a_keeper(world: World, chance: random.Random) -> None:
    number = chance.choice(KEEPERS)
    world.kill_keeper(number)
    world.start_keeper(number)


@_fault
def restart_two_keepers(world: World, chance: random.Random) -> None:
    for number in chance.sample(KEEPERS, 2):
        world.kill_keeper(number)
        world.start_keeper(number)


@_fault
def kill_a_keeper(world: World, chance: random.Random) -> None:
    world.kill_keeper(chance.choice(KEEPERS))


@_fault
def start_a_keeper(world: World, chance: random.Random) -> None:
    for number in KEEPERS:
        if not world.network.processes[f"k{number}"].is_alive:
            world.start_keeper(number)


@_fault
def fail_fsync(world: World, chance: random.Random) -> None:
    number = chance.choice(sorted(world.disks))
    world.disks[number].fails = not world.disks[number].fails


@_fault
def restart_the_coordinator(world: World, chance: random.Random) -> None:
    world.network.processes["coordinator"].kill()
    world.start_coordinator()


@_fault
def slow_network(world: World, chance: random.Random) -> None:
    world.network.is_slow = not world.network.is_slow


@_fault
def cut_answers_of_keepers(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        world.network.cut |= {(f"k{keeper}", f"b{number}") for keeper in KEEPERS}


@_fault
def cut_off_but_for_the_client(world: World, chance: random.Random) -> None:
    if (number := _broker(world, chance)) is not None:
        for other in world.network.processes.keys() - {"client"}:
            world.network.cut |= {(f"b{number}", other), (other, f"b{number}")}


@_fault
def stop_a_clock(world: World, chance: random.Random) -> None:
    """Stop a broker's clock, but only with sync, whose guarantees do not depend on clocks."""
    if world.policy.mode == "sync" and (number := _broker(world, chance)) is not None:
        world.clocks_are_wrong = True
        world.brokers[number].process.stop_clock()


@_fault
def nothing(world: World, chance: random.Random) -> None:
    """Let the cluster settle for 2 seconds."""
    world.run(2.0)


def explore(
    seed: int, bugs: Collection[str] = (), *, faults: Collection[str] = (), steps: int = 25, **config: Any
) -> World:
    """Run the history of this seed.

    Raises `Violated`, or another exception of a state machine, where the history reveals a bug.
    """
    chance = random.Random(seed)
    if not config:
        config = {
            "mode": chance.choice(("sync", "sync", "async")),
            "min_in_sync": chance.choice((1, 2)),
            "flush_sync": chance.random() < 0.4,
        }
    world = World(seed, bugs, **config)
    world.run(2.0)
    drawn = sorted(faults or FAULTS)
    for _ in range(steps):
        FAULTS[chance.choice(drawn)](world, chance)
        world.run(chance.choice((0.05, 0.3, 0.3, 1.0, 2.0)))
    world.recover()
    world.check_end()
    return world
