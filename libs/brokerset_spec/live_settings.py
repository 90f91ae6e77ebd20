"""Settings of brokers that take effect while the process runs (UPDATE_BROKER_CONFIG)."""

from __future__ import annotations

from typing import Final

CHANGEABLE: Final = frozenset(
    {
        "allAckInSyncStateSet",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "channelExpiredTimeout",
        "cleanFileForciblyEnable",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
        "flushConsumerOffsetInterval",
        "haFlowControlEnable",
        "haMaxTimeSlaveNotCatchup",
        "inSyncReplicas",
        "longPollingEnable",
        "maxHaTransferByteInSecond",
        "maxMsgsNumBatch",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "minInSyncReplicas",
        "namesrvAddr",
        "notifyConsumerIdsChangedEnable",
        "recallMessageEnable",
        "regionId",
        "registerNameServerPeriod",
        "resetNoticeMillis",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slaveTimeout",
        "storeReplyMessageEnable",
        "timerCongestNumEachSlot",
        "timerMaxDelaySec",
        "timerStopDequeue",
        "timerStopEnqueue",
        "timerWheelEnable",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionOpMsgMaxSize",
        "transactionTimeOut",
    }
)
"""Settings that take effect at once; every other one needs a restart."""
