"""Build RocketMQ's runtime table of a broker, which `clusterList`, exports and the Dashboard read."""

from __future__ import annotations

import os

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.copies.republisher import PURPOSES
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.statistics import MINUTE, Counter, Statistics
from raymq.actors.errors import NotFoundError, StoreCorrupt
from raymq.actors.naming import is_group
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.log.retention import DiskUsage

#: The RocketMQ version that the broker is compatible with, and its ordinal.
VERSION_NAME, VERSION = "V5_3_3", 479
#: The figures name at most this many producer groups.
_GROUPS = 100
#: RocketMQ's default. Here only appends that wait for the disk queue up: requests are served as they are read.
_QUEUE_CAPACITY = 10_000
_QUEUES = ("send", "pull", "query", "endTransaction", "clientManager", "heartbeat", "reply", "ack", "litePull")


def broker_runtime_info(core: BrokerCore, statistics: Statistics, groups: ClientRegistry) -> dict[str, str]:
    """Return all figures of the broker's runtime table as text."""
    figures: dict[str, object] = {
        "brokerActive": True,
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_NAME,
        "currentTimeMillis": int(core.clock() * 1000),
        **_traffic(statistics),
        **{f"refusedAppends_{cause}": count for cause, count in statistics.refusals.items()},
        **{f"setAside_{duty}": core.set_aside.counts[duty] for duty in PURPOSES},
        **{
            f"waitsFor_{name}": " ".join(sorted(group.waits_for))
            for name, group in groups.consumer_groups().items()
            if group.waits_for
        },
        **_waiting_transactions(core),
        "loopLongestStopMillis": round(1000 * statistics.loop_lag.longest, 1),
        "loopLongestStopMillisRecently": round(1000 * statistics.loop_lag.recent, 1),
        "loopStopsAbove20Millis": statistics.loop_lag.long_count,
        **_log(core),
        **_machine(),
        "pageCacheLockTimeMills": 0,
        "timerReadBehind": 0,
        "timerOffsetBehind": 0,
        "timerCongestNum": 0,
        "timerEnqueueTps": 0.0,
        "timerDequeueTps": 0.0,
    }
    for name in _QUEUES:
        figures[f"{name}ThreadPoolQueueSize"] = 0
        figures[f"{name}ThreadPoolQueueCapacity"] = _QUEUE_CAPACITY
        figures[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
    figures["sendThreadPoolQueueSize"] = core.admission.appends_under_way
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in figures.items()}


def _waiting_transactions(core: BrokerCore) -> dict[str, object]:
    """Return how many transactions wait for producers, by group; small groups are one total."""
    waiting = core.transactions.waiting_for().most_common()
    shown = [(group, count) for group, count in waiting[:_GROUPS] if is_group(group)]
    figures: dict[str, object] = {f"transactionsOf_{group}": count for group, count in shown}
    if others := sum(count for _, count in waiting) - sum(count for _, count in shown):
        figures["transactionsOfOthers"] = others
    return figures


def _traffic(statistics: Statistics) -> dict[str, object]:
    put, got, now = statistics.total_put, statistics.total_get, statistics.clock()
    this_morning, yesterday_morning = statistics.midnight_totals()
    get_rates = _rates(got, now)
    return {
        "bootTimestamp": int(statistics.started * 1000),
        "startAcceptSendRequestTimeStamp": int(statistics.started * 1000),
        "runtime": _duration(int(now - statistics.started)),
        "putMessageTimesTotal": put.messages,
        "putMessageSizeTotal": put.bytes,
        "putMessageAverageSize": put.bytes / max(1, put.messages),
        "putTps": _rates(put, now),
        "getFoundTps": get_rates,
        "getTotalTps": get_rates,
        "getTransferredTps": get_rates,
        "getTransferedTps": get_rates,  # the name in older versions, which tools still read
        "msgPutTotalTodayNow": put.messages,
        "msgPutTotalTodayMorning": this_morning[0],
        "msgPutTotalYesterdayMorning": yesterday_morning[0],
        "msgGetTotalTodayNow": got.messages,
        "msgGetTotalTodayMorning": this_morning[1],
        "msgGetTotalYesterdayMorning": yesterday_morning[1],
    }


def _log(core: BrokerCore) -> dict[str, object]:
    store = core.store
    ratio = DiskUsage.of(store.directory).ratio
    try:
        earliest = next(store.walk(store.min_physical_offset), None)
    except (NotFoundError, StoreCorrupt):
        earliest = None
    figures: dict[str, object] = {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{store.directory}": ratio,
        "consumeQueueDiskRatio": ratio,
        "diskRefuseRatio": store.config.disk_refuse_ratio,
        "commitLogMinOffset": store.min_physical_offset,
        "commitLogMaxOffset": store.max_physical_offset,
        "dispatchBehindBytes": 0,
        "remainHowManyDataToFlush": f"{store.max_physical_offset - store.flushed_offset} B",
        "earliestMessageTimeStamp": -1 if earliest is None else earliest.store_timestamp_ms,
    }
    for level in range(1, core.schedule.levels + 1):
        delivered = store.delay_offsets.get(level)
        if delivered is not None:
            _, waiting = core.bounds(SCHEDULE_TOPIC, level - 1)
            figures[f"scheduleMessageOffset_{level}"] = f"{delivered},{waiting}"
    return figures


def _machine() -> dict[str, object]:
    page_kib = os.sysconf("SC_PAGE_SIZE") // 1024
    return {
        "totalMemKBytes": os.sysconf("SC_PHYS_PAGES") * page_kib,
        "freeMemKBytes": os.sysconf("SC_AVPHYS_PAGES") * page_kib,
    }


def _rates(counter: Counter, now: float) -> str:
    """Return the messages per second over 10 s, a minute and 10 minutes, as text."""
    return " ".join(
        f"{counter.sums(now, seconds).messages_per_second:.2f}" for seconds in (MINUTE / 6, MINUTE, 10 * MINUTE)
    )


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
