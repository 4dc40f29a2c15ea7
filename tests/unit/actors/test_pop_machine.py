"""Test pop against a model: sends, pops, acks, renewals, resets, kills, waits in any order."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import UnsyncedCalls
from tests.unit.actors.pop_bench import Handle, PopBench
from tests.validation import check_invariants

MAXIMUM = 2


@dataclass
class ModelMessage:
    """Hold the model's state of a message; `out_until` is set while it is in flight."""

    out_until: float | None = None
    handle: Handle | None = None
    times: int = -1
    done: bool = False


class PopMachine(RuleBasedStateMachine):
    """Test one queue with one group."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="pop-machine-"))
        self.calls = replaced(UnsyncedCalls())
        self.calls.__enter__()
        self.bench = PopBench(self.root)
        self.messages: list[ModelMessage] = []
        self.next = 0
        self.handles: list[Handle] = []
        self.dead = 0
        self.ordered = False

    @initialize(ordered=st.booleans())
    def choose(self, ordered: bool) -> None:
        self.ordered = ordered

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        self.bench.send(*(b"%d" % (len(self.messages) + n) for n in range(count)))
        self.messages += [ModelMessage() for _ in range(count)]

    @rule(count=st.integers(1, 5), invisible=st.sampled_from([1.0, 5.0, 60.0]))
    def receive(self, count: int, invisible: float) -> None:
        out = [o for o, m in enumerate(self.messages) if m.out_until is not None]
        ready = [o for o in out if self._ran_out(o) and self.messages[o].times < MAXIMUM]
        expected = [*ready, *range(self.next, len(self.messages))][:count]
        if self.ordered and len(out) > len(ready):
            expected = []
        found = self.bench.receive(count, invisible, maximum=MAXIMUM, ordered=self.ordered)
        assert [handle.offset for handle in found] == expected
        for handle in found:
            message = self.messages[handle.offset]
            message.times += 1
            assert handle.reconsume_times == message.times
            message.out_until = self.bench.clock.now + invisible
            message.handle = handle
            self.next = max(self.next, handle.offset + 1)
        self.handles += found

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        alive = self._is_alive(handle)
        assert self.bench.ack(handle) == [alive]
        if alive:
            message = self.messages[handle.offset]
            message.done, message.out_until = True, None

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def change(self, data: st.DataObject, seconds: float) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        alive = self._is_alive(handle)
        renewed = self.bench.change(handle, seconds)
        assert (renewed is not None) == alive
        if renewed is not None:
            assert renewed not in self.handles
            message = self.messages[handle.offset]
            message.handle = renewed
            message.out_until = self.bench.clock.now + seconds
            self.handles.append(renewed)

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        self.bench.pop.sweep()
        self.bench.store.flush()  # a delivery ends when its dead letter is on disk
        self.bench.pop.sweep()
        for offset, message in enumerate(self.messages):
            if message.out_until is not None and self._ran_out(offset) and message.times >= MAXIMUM:
                message.done, message.out_until = True, None
                self.dead += 1

    @rule()
    def kill(self) -> None:
        self.bench.kill()
        # A restart takes longer than the milliseconds that identify earlier deliveries.
        self.bench.clock.advance(0.1)

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self.next = data.draw(st.integers(0, len(self.messages)))
        self.bench.store.consumer_offsets.commit("g", "t", 0, self.next)
        self.bench.pop.forget("g", "t", 0)
        done = [ModelMessage(done=True) for _ in range(self.next)]
        self.messages = done + [ModelMessage() for _ in self.messages[self.next :]]

    @invariant()
    def agrees(self) -> None:
        check_invariants(self.bench.pop)
        assert len(self.bench.dead_letters()) == self.dead
        committed = self.bench.committed()
        if committed is not None:
            assert committed == next((o for o, m in enumerate(self.messages) if not m.done), len(self.messages))

    def teardown(self) -> None:
        self.bench.close()
        self.calls.__exit__(None, None, None)
        shutil.rmtree(self.root)

    def _ran_out(self, offset: int) -> bool:
        until = self.messages[offset].out_until
        return until is not None and round(until * 1000) <= round(self.bench.clock.now * 1000)

    def _is_alive(self, handle: Handle) -> bool:
        message = self.messages[handle.offset]
        return message.out_until is not None and message.handle == handle and not self._ran_out(handle.offset)


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
