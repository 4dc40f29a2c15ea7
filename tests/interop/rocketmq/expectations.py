"""List the methods of RocketMQ's own tests that fail on a RayMQ cluster, and why. Passing ones must be removed."""

from __future__ import annotations

#: The prefix of all classes.
PACKAGE = "org.apache.rocketmq.test."

#: They inspect brokers or name servers in their own process, or need three of them: they fail on an external RocketMQ
#: cluster, too.
IN_THEIR_OWN_PROCESS: dict[str, frozenset[str]] = {
    "client.producer.batch.BatchSendIT": frozenset(
        ["testBatchSend_ViewMessage", "testBatchSend_SysInnerBatch", "testBatchSend_SysOuterBatch"]
    ),
    "offset.LagCalculationIT": frozenset(["testCalculateLag", "testEstimateLag"]),
    "offset.OffsetNotFoundIT": frozenset(["testConsumeStopAndResume"]),
    "offset.OffsetResetForPopIT": frozenset(
        ["testResetOffsetThenAckOldForPopOrderly", "testRestOffsetToSkipMsgForPopOrderly"]
    ),
    "offset.OffsetResetIT": frozenset(["testPullOffsetTotal", "testResetOffsetSingleQueue", "testResetOffsetTotal"]),
    "route.CreateAndUpdateTopicIT": frozenset(
        [
            "testCreateOrUpdateTopic_EnableSplitRegistration",
            "testStaticTopicNotAffected",
            "testCreateOrUpdateTopic_EnableSingleTopicRegistration",
        ]
    ),
    "smoke.NormalMessageSendAndRecvIT": frozenset(["testSynSendMessageWhenEnableBuildConsumeQueueConcurrently"]),
}

#: They expect what RayMQ does differently by design; docs/internals/differences.md uses these words.
ON_PURPOSE: dict[str, dict[str, str]] = {
    "client.consumer.pop.PopOrderlyIT": {
        "testPopMessageOrderlyThenChangeInvisibleTimeMidMessage": "In order, what was acknowledged does not come again",
    },
    "client.producer.querymsg.QueryMsgByKeyIT": {"testQueryMax": "limit of a query"},
    "recall.RecallWithTraceIT": {"testRecallTrace": "Recall is on and its answer is definite"},
    "recall.SendAndRecallDelayMessageIT": {
        "testSendAndRecall_ukCollision": "Recall is on and its answer is definite",
    },
}


def expected_failures(name: str) -> frozenset[str]:
    """Return the failing methods of a class; `name` is without the prefix."""
    return IN_THEIR_OWN_PROCESS.get(name, frozenset()) | ON_PURPOSE.get(name, {}).keys()
