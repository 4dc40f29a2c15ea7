"""Turn the responses of brokers into one result per message.

The results are computed with NumPy, at the first access. `batch_error` and `table_error` make the error of a batch or
table that failed halfway, with the outcome of each message or part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import repeat
from typing import Final, overload

import numpy as np

from raymq.actors.errors import Attempt, NotStored, OutcomeUnknown, PartlyStored, RayMQError, SendError
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.sender import SendOutcome, SingleSendOutcome
from raymq.client.produce.message_encoder import FEW, key_texts, strings
from raymq.client.results import PartResult, SendResult
from raymq.storage.records import message_id
from raymq.storage.records.record import pack_host
from raymq.storage.records.unique_key_generator import hexadecimal, process_unique_keys

_unique_keys: Final = process_unique_keys()


def results_of(sent: SendOutcome, key_numbers: Sequence[str | int]) -> list[SendResult]:
    """Return the result of each message of `sent`, whose unique keys are `key_numbers`."""
    placed = sent.placed
    if len(key_numbers) == 1:
        return [result_of_one(sent.one(), key_numbers[0])]
    ids = np.asarray(placed.queue_ids).tolist()
    queues = {queue_id: MessageQueue(placed.topic, sent.queue.broker, queue_id) for queue_id in set(ids)}
    columns = zip(
        repeat(sent.status),
        _message_ids(sent),
        key_texts(key_numbers),
        map(queues.__getitem__, ids),
        np.asarray(placed.queue_offsets).tolist(),
        repeat(None),
        repeat(None),
    )
    return list(map(SendResult._make, columns))


def offset_runs(sent: SendOutcome) -> list[tuple[MessageQueue, int, int]]:
    """Return the queue, first offset and length of each run of messages of `sent`.

    There is one run, unless the broker lost power and stored the lost messages when they were sent again.
    """
    offsets = np.asarray(sent.placed.queue_offsets)
    begins = np.append(0, np.flatnonzero(np.diff(offsets) != 1) + 1)
    lengths = np.diff(np.append(begins, len(offsets)))
    runs = zip(offsets[begins].tolist(), lengths.tolist(), strict=True)
    return [(sent.queue, offset, length) for offset, length in runs]


#: The outcome of a part of a batch.
PartOutcome = SendOutcome | RayMQError


def batch_error(outcomes: Sequence[tuple[int, PartOutcome]], key_numbers: Sequence[str | int]) -> RayMQError:
    """Return the error of a batch that failed halfway, with an entry per message.

    Args:
        outcomes: the message count and the outcome of each attempted part, in order.
        key_numbers: the unique keys of all messages.
    """
    entries: list[SendResult | NotStored | OutcomeUnknown] = []
    for count, outcome in outcomes:
        if isinstance(outcome, RayMQError):
            entries += [_entry(outcome)] * count
        else:
            entries += results_of(outcome, key_numbers[len(entries) : len(entries) + count])
    untried = len(key_numbers) - len(entries)
    return _error([*entries, *[_never_tried()] * untried], [outcome for _, outcome in outcomes])


def table_error(outcomes: Sequence[tuple[int, PartOutcome]], first_keys: Sequence[str], rows: int) -> RayMQError:
    """Return the error of a table that failed halfway, with an entry per part.

    Args:
        outcomes: as in `batch_error`, counted in rows. All rows that were never attempted are one entry.
        first_keys: the unique key of the first row of each part, at least of the attempted parts.
        rows: the number of rows of the table.
    """
    entries: list[SendResult | NotStored | OutcomeUnknown] = []
    for (count, outcome), key in zip(outcomes, first_keys, strict=False):
        entry: SendResult | NotStored | OutcomeUnknown
        if isinstance(outcome, RayMQError):
            entry = _entry(outcome)
        else:
            topic, queue_ids, queue_offsets, physical_offsets = outcome.placed
            queue = MessageQueue(topic, outcome.queue.broker, int(queue_ids[0]))
            place = outcome.status, queue, outcome.address, int(queue_offsets[0]), int(physical_offsets[0])
            entry = PartResult(*result_of_one(place, key))
        entry.rows = count
        entries.append(entry)
    if untried := rows - sum(count for count, _ in outcomes):
        rest = _never_tried()
        rest.rows = untried
        entries.append(rest)
    return _error(entries, [outcome for _, outcome in outcomes])


def _never_tried() -> NotStored:
    return NotStored("not tried: a part before it failed")


def _entry(error: RayMQError) -> NotStored | OutcomeUnknown:
    """Return the entry of a message or part that failed with `error`.

    An error of another kind is a refusal, after which nothing is stored.
    """
    if isinstance(error, NotStored | OutcomeUnknown):
        return copy(error)
    refused = NotStored(str(error), [Attempt(error.refused_by, None, error.code, str(error), 0.0)])
    refused.kept = error.kept
    return refused


def _what_became_of(entry: SendResult | NotStored | OutcomeUnknown) -> str:
    if isinstance(entry, SendResult):
        return "stored"
    if entry.kept:
        return "kept by the outbox"
    return "not stored" if isinstance(entry, NotStored) else "may or may not be stored"


def _error(entries: Sequence[SendResult | NotStored | OutcomeUnknown], outcomes: Sequence[PartOutcome]) -> RayMQError:
    """Return the error of a send of several messages with these entries."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, RayMQError)]
    rows = [getattr(entry, "rows", 1) for entry in entries]
    counts = Counter[str]()
    for count, entry in zip(rows, entries, strict=True):
        counts[_what_became_of(entry)] += count
    is_any_stored = any(isinstance(entry, SendResult) for entry in entries)
    is_any_unknown = any(isinstance(entry, OutcomeUnknown) for entry in entries)
    if not is_any_stored and not is_any_unknown and not isinstance(failures[0], SendError):
        return failures[0]  # the original refusal applies to all messages and is more precise
    attempts = [each for failure in failures if isinstance(failure, SendError) for each in failure.attempts]
    text = ", ".join(f"{count} {words}" for words, count in counts.items())
    error: SendError
    if is_any_unknown:
        error = OutcomeUnknown(f"of {sum(rows)} messages {text}", attempts)
    elif is_any_stored:
        error = PartlyStored(f"of {sum(rows)} messages {text}: {failures[0]}", attempts)
    else:
        error = NotStored(f"of {sum(rows)} messages {text}", attempts)
    error.results = list(entries)
    error.kept = all(entry.kept for entry in entries if isinstance(entry, RayMQError))
    if error.kept:
        error.remedy = failures[0].remedy
    return error


def result_of_one(sent: SingleSendOutcome, key_number: str | int) -> SendResult:
    """Return the result of a message that was sent alone."""
    status, queue, address, queue_offset, physical_offset = sent
    key = key_number if isinstance(key_number, str) else _unique_keys.text(key_number)
    return SendResult(status, f"{_id_prefix(address)}{physical_offset:016X}", key, queue, queue_offset)


@lru_cache(maxsize=256)
def _id_prefix(address: str) -> str:
    """Return the common beginning of the ids of a broker's messages."""
    host, _, port = address.rpartition(":")
    return message_id.prefix(host.strip("[]"), int(port))


class BatchResults(Sequence[SendResult]):
    """The results of a batch that was sent in parts, in message order.

    The sequence is immutable.
    """

    def __init__(self, sent: Sequence[SendOutcome], key_numbers: Sequence[str | int]) -> None:
        """Initialize the results.

        Args:
            sent: the responses of the parts.
            key_numbers: the unique keys of all messages.
        """
        self._sent = sent
        self._key_numbers = key_numbers
        self._made: list[SendResult] | None = None

    def __len__(self) -> int:
        return len(self._key_numbers)

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        return self._results[index]

    def __iter__(self) -> Iterator[SendResult]:
        return iter(self._results)

    def __eq__(self, other: object) -> bool:
        return self._results == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._results)

    @property
    def _results(self) -> list[SendResult]:
        # No `cached_property`: up to Python 3.11 that has one lock for all, which a forked child may inherit held.
        if self._made is None:
            results: list[SendResult] = []
            for sent in self._sent:
                first = len(results)
                results += results_of(sent, self._key_numbers[first : first + len(sent.placed.queue_offsets)])
            self._made = results
        return self._made


def _message_ids(sent: SendOutcome) -> list[str]:
    host, _, port = sent.address.rpartition(":")
    host = host.strip("[]")
    offsets = np.asarray(sent.placed.physical_offsets)
    if len(offsets) <= FEW or ":" in host:
        prefix = _id_prefix(sent.address)
        return [f"{prefix}{offset:016X}" for offset in offsets.tolist()]
    rows = np.empty((len(offsets), 16), np.uint8)
    rows[:, :8] = np.frombuffer(pack_host(host, int(port)), np.uint8)
    rows[:, 8:] = offsets.astype(">i8").view(np.uint8).reshape(len(offsets), 8)
    return strings(hexadecimal(rows))
