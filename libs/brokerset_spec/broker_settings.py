"""Settings of a broker process, outside with RocketMQ's names (Java: BrokerConfig, MessageStoreConfig)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from brokerset_spec.access_settings import (
    POLICIES_WITHOUT_NAMES,
    credentials_problems,
    first_user_of,
    inner_credentials_of,
)
from brokerset_spec.setting_fields import (
    INT32_MAX,
    INT64_MAX,
    PORT_MAX,
    address_problems,
    named,
    number,
    range_problems,
    secret,
    switch,
)

NAME_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
"""What cluster and broker names may look like; they also become topic names, hence the same alphabet."""

SLICE_PATTERN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""Namespace and name of an object of Kubernetes."""

DELAY_PATTERN: Final = re.compile(r"[1-9][0-9]{0,8}[smhd]")
"""One entry of `messageDelayLevel`."""

RECORD_EXTRA_BYTES: Final = 64 * 1024
"""Room for everything in a record but the body: fixed fields, topic, and at most 32 KiB of properties."""

PEER_PATTERN: Final = re.compile(r"(?P<id>n[0-9]{1,9})-(?P<address>[^;\s]+:[0-9]{1,5})")
"""One member in `dLegerPeers`."""

OWNER_SIZE_MAX: Final = 255
"""Characters of an owner's UID."""

CONSUME_QUEUE_UNIT_BYTES: Final = 20
"""A consume queue file holds whole units of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Everything that can be set on a broker; the defaults are RocketMQ 5's where nothing else is said."""

    broker_cluster_name: str = "DefaultCluster"
    """Name of the RocketMQ cluster that the broker belongs to; also a topic, see `clusterTopicEnable`."""

    broker_name: str = "broker-a"
    """Name of the broker group; all replicas of a group share it."""

    broker_id: int = number(0, high=INT64_MAX)
    """Number inside the group; 0 is the master. Ignored in controller mode."""

    broker_role: Literal["ASYNC_MASTER"] = "ASYNC_MASTER"
    """Role of a broker without controllers; only a master without replicas is served. Ignored in controller
    mode."""

    broker_ip1: str = named("127.0.0.1", "brokerIP1")
    """Address that is told to clients."""

    bind_address: str = "0.0.0.0"
    """Address of the network interface to listen on."""

    tls_config_file: Path | None = None
    """File with RocketMQ's keys of TLS (`tls.server.mode` and others); empty means plain connections only. It
    and the certificates that it names are read again when they change. RocketMQ takes it as the system
    property `tls.config.file`."""

    listen_port: int = number(10911, high=PORT_MAX)
    """Port of the remoting protocol, also told to clients; 0 takes a free one."""

    http_port: int = number(8080, high=PORT_MAX)
    """Port of `/metrics`, `/healthz`, `/readyz` and `/store/…`; 0 switches it off. Not known to RocketMQ."""

    store_stream_enable: bool = False
    """Whether `/store/…` of the HTTP port gives out the files of the store, message bodies included, for jobs
    elsewhere; see `storeStreamTokenFile`. Not known to RocketMQ."""

    store_stream_token_file: Path | None = None
    """File with the token that `/store/…` asks for (`Authorization: Bearer …`), read again when it changes;
    empty means that everybody who reaches the HTTP port may read the store. Not known to RocketMQ."""

    max_store_streams: int = number(4, low=1, high=64)
    """Readers of `/store/…` that are served at the same time; others wait. Not known to RocketMQ."""

    max_store_stream_byte_in_second: int = number(52_428_800, low=65_536, high=INT64_MAX)
    """Bytes that all readers of `/store/…` together get in a second. Not known to RocketMQ."""

    namesrv_addr: str = ""
    """Name servers as `host:port`, separated by `;`; empty means that the broker registers nowhere. After a
    change the broker registers with new ones at once, unregisters at old ones, and leaves the rest alone."""

    fetch_namesrv_addr_by_dns_lookup: bool = False
    """Whether each name in `namesrvAddr` stands for all name servers behind its DNS records, looked up again
    and again: name servers come and go without a restart of the broker."""

    advertised_address: str = ""
    """`host:port` that name servers tell to clients; empty means `brokerIP1` and `listenPort`. Controllers
    and other brokers always use the latter. Not known to RocketMQ."""

    advertised_master_address: str = ""
    """The same while this broker is master: an address that leads to whoever is master, so that clients keep
    theirs over a failover. Empty means `advertisedAddress`. Not known to RocketMQ."""

    master_endpoint_slice: str = ""
    """`<namespace>/<name>` of the EndpointSlice that a new master writes its address into, on Kubernetes;
    empty writes none. Not known to RocketMQ."""

    ready_only_in_sync: bool = False
    """Whether `/readyz` of a slave that is not in sync says no; on Kubernetes this keeps another broker of
    the group from being evicted meanwhile. A fenced one is ready. Not known to RocketMQ."""

    register_name_server_period: int = number(30_000, low=1_000, high=60_000)
    """Milliseconds between two registrations; RocketMQ keeps it between 10 and 60 s, tests may go lower."""

    register_broker_timeout_mills: int = number(24_000, low=100)
    """Milliseconds that one registration at one name server may take."""

    region_id: str = "DefaultRegion"
    """Region that is told to clients with each answer to a send."""

    refuse_signed_requests: bool = False
    """Whether requests signed with an access key are refused, as no signature is checked here (ours)."""

    authentication_enabled: bool = False
    """Whether every request must be signed by a user that the broker knows; see `docs/security.md`."""

    authorization_enabled: bool = False
    """Whether policies say what users may do; without it every user may do everything."""

    authentication_whitelist: str = ""
    """Request codes that need no signature, separated by commas."""

    authorization_whitelist: str = ""
    """Request codes that every user may send, separated by commas."""

    refusals_max: int = number(10_000)
    """Refused requests (code 16) of one connection in 10 s at which it is closed; 0: never. A slave
    counts what its master refuses, but for one-way requests. Not known to RocketMQ."""

    init_authentication_user: str = secret()
    """A Super user, as `{"username":"…","password":"…"}`; counts until a user of that name is stored."""

    inner_client_authentication_credentials: str = secret()
    """What brokers of a group sign with, as `{"accessKey":"…","secretKey":"…"}`: a Super user as well. The
    same for all of them."""

    trace_on: bool = True
    """Whether clients are told to record message traces."""

    trace_topic_enable: bool = False
    """Whether the topic for message traces is created at start."""

    store_reply_message_enable: bool = True
    """Whether replies of request-reply are also stored, in `<cluster>_REPLY_TOPIC`; they reach who asked
    for them either way."""

    broker_permission: int = number(6, high=7)
    """Bits of what the broker allows as a whole: 4 read, 2 write."""

    auto_create_topic_enable: bool = True
    """Whether a send to an unknown topic creates it."""

    auto_create_subscription_group: bool = True
    """Whether an unknown consumer group is created when it shows up."""

    default_topic_queue_nums: int = number(8, low=1, high=1024)
    """Most queues that an automatically created topic gets."""

    cluster_topic_enable: bool = True
    """Whether a topic named like the cluster exists."""

    broker_topic_enable: bool = True
    """Whether a topic named like the broker exists."""

    enable_controller_mode: bool = False
    """Whether controllers give this broker its id and its role."""

    controller_addr: str = ""
    """Controllers as `host:port`, separated by `;`; at least one in controller mode."""

    fetch_controller_addr_by_dns_lookup: bool = False
    """Whether each name in `controllerAddr` stands for all controllers behind its DNS records."""

    broker_heartbeat_interval: int = number(500, low=10)
    """Milliseconds between two heartbeats to each controller. RocketMQ: 1,000."""

    send_heartbeat_timeout_millis: int = number(1_000, low=10)
    """Milliseconds that a heartbeat may take, connecting included."""

    controller_heart_beat_timeout_mills: int = number(2_000, low=20)
    """Milliseconds of silence after which controllers suspect this broker. RocketMQ: 10,000."""

    sync_broker_metadata_period: int = number(1_000, low=10)
    """Milliseconds between two queries for the group's master. RocketMQ: 5,000."""

    sync_controller_metadata_period: int = number(10_000, low=10)
    """Milliseconds between two queries for the controller that leads; a failed request sends one at once."""

    broker_election_priority: int = number(INT32_MAX)
    """Among equals the broker with the smallest number becomes master."""

    broker_ip2: str = named("", "brokerIP2")
    """Address that is told to slaves; empty means `brokerIP1`."""

    ha_listen_port: int = number(0, high=PORT_MAX)
    """Port for slaves; 0 takes the one above `listenPort`."""

    all_ack_in_sync_state_set: bool = True
    """Whether a send is answered when all in-sync replicas have its message. RocketMQ: false, so that it
    loses acknowledged messages when a master dies."""

    in_sync_replicas: int = number(1, low=1, high=64)
    """How many in-sync replicas, the master included, must have a message when not all have to."""

    min_in_sync_replicas: int = number(1, low=1, high=64)
    """With fewer in-sync replicas, the master included, sends are refused."""

    async_learner: bool = False
    """Whether this replica follows without ever being in sync."""

    sync_from_last_file: bool = False
    """Whether an empty replica begins with the master's last file instead of its first."""

    slave_timeout: int = number(3_000, low=10)
    """Milliseconds after which a send that waits for replicas is answered `FLUSH_SLAVE_TIMEOUT`."""

    ha_send_heartbeat_interval: int = number(500, low=10, high=10_000)
    """Milliseconds after which an idle connection to a slave carries a heartbeat. RocketMQ: 5,000."""

    ha_housekeeping_interval: int = number(20_000, low=100)
    """Milliseconds of silence after which a connection between master and slave is closed."""

    ha_transfer_batch_size: int = number(262_144, low=1_024, high=4_194_268)
    """Most bytes of the log that one packet to a slave carries. RocketMQ: 32,768."""

    ha_max_time_slave_not_catchup: int = number(2_000, low=50)
    """Milliseconds after which a replica that lags leaves the in-sync set. RocketMQ: 15,000."""

    ha_flow_control_enable: bool = False
    """Whether `maxHaTransferByteInSecond` counts."""

    max_ha_transfer_byte_in_second: int = number(104_857_600, low=1_024, high=INT64_MAX)
    """Bytes that go to one slave in a second, with flow control."""

    store_path_broker_identity: Path | None = None
    """File of the id that controllers gave; empty means `brokerIdentity` in `storePathRootDir`."""

    store_path_epoch_file: Path | None = None
    """File of the master epochs; empty means `epochFileCheckpoint` in `storePathRootDir`."""

    owner_uid: str = ""
    """UID of the BrokerSet that runs the broker: controllers keep others out of its group. Not known to
    RocketMQ."""

    expected_replicas: int = number(0, high=64)
    """Brokers that the BrokerSet runs in the group, 0 if nobody says: a new group waits for all of them
    before its first election. Not known to RocketMQ."""

    enable_dledger_commit_log: bool = switch(False, "enableDLegerCommitLog")
    """Whether the commit log is replicated by a DLedger, whose members elect a leader without controllers."""

    dledger_group: str = named("", "dLegerGroup")
    """Name of the DLedger group; empty means `brokerName`. RocketMQ wants it."""

    dledger_peers: str = named("", "dLegerPeers")
    """All members of the DLedger group, as `n0-host:port;n1-host:port;n2-host:port`. Cannot be changed."""

    dledger_self_id: str = named("", "dLegerSelfId")
    """Which member of `dLegerPeers` this broker is, such as `n0`."""

    dledger_brokerset_only: bool = switch(False, "dLegerBrokersetOnly")
    """Whether all members are brokers of brokerset: then a group promises what it cannot with a member of
    Java in it. The same on all members. Not known to RocketMQ."""

    dledger_accept_loss: bool = switch(False, "dLegerAcceptLoss")
    """Whether this member votes although it may lack acknowledged messages: for one start, when a member that
    may have them is lost for good. Not known to RocketMQ."""

    preferred_leader_id: str = ""
    """Members that lead when they can, separated by `;`."""

    store_path_d_ledger_commit_log: Path | None = None
    """Folder of the folder `dledger-<dLegerSelfId>`; empty means `storePathRootDir`."""

    long_polling_enable: bool = True
    """Whether a pull without messages is parked until some arrive or its time is over."""

    short_polling_time_mills: int = number(1_000, low=1)
    """Milliseconds that a pull is parked when long polling is off."""

    server_load_balancer_enable: bool = True
    """Whether the broker divides the queues among the clients that ask it for their assignment; otherwise
    each gets all."""

    default_message_request_mode: Literal["PULL", "POP"] = "PULL"
    """How groups get messages for which `mqadmin setConsumeMode` has said nothing."""

    default_pop_share_queue_num: int = number(-1, low=-1, high=INT32_MAX)
    """With POP as the default: each client pops its own queues and those of so many others; -1 for any
    queue."""

    enable_lmq: bool = False
    """Whether there are light queues: topics and groups `%LMQ%…` that nobody creates; with
    `enableMultiDispatch`, messages are put into those that they name."""

    enable_multi_dispatch: bool = False
    """Whether messages are put into the light queues that they name; needs `enableLmq`."""

    max_lmq_consume_queue_num: int = number(20_000, low=1, high=1_000_000)
    """Light queues of this broker; messages that would begin further ones are refused. RocketMQ counts
    only with `enableLmqQuota`."""

    lite_ttl_check_interval: int = number(120_000, low=100)
    """Milliseconds between two searches for lite topics that have expired."""

    min_lite_ttl: int = number(900_000, low=0, high=INT64_MAX, name="minLiteTTl")
    """Milliseconds without a message for which a lite topic is kept, whatever its parent says."""

    enable_mixed_message_type: bool = False
    """Whether topics may have the message type MIXED."""

    refuse_other_message_types: bool = False
    """Whether a message is refused whose type is not that of its topic. Not known to RocketMQ, where only
    its proxies refuse them."""

    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92 over the properties of messages, besides tags."""

    filter_support_retry: bool = False
    """Whether messages of a retry topic are filtered, too, by the group's filter of the topic whence they
    came; needs `enablePropertyFilter`."""

    filter_data_clean_time_span: int = number(86_400_000, low=1_000, high=INT64_MAX)
    """Milliseconds that the SQL92 filter of a group is kept after its last member has left."""

    expect_consumer_num_use_filter: int = number(32, low=1, high=100_000)
    """Groups for whose bit maps `consumerFilter.json` is written; for a Java broker that goes on with it."""

    max_error_rate_of_bloom_filter: int = number(20, low=1, high=99)
    """Percent of wrong hits for which the same bit maps are written."""

    notify_consumer_ids_changed_enable: bool = True
    """Whether the members of a group are told when one joins or leaves."""

    reset_notice_millis: int = number(5_000)
    """Milliseconds that reset offsets wait for a pull before the group's members are sent them (220); 0:
    never, as in RocketMQ. A Java consumer that was suspended goes on by it."""

    channel_expired_timeout: int = number(120_000, low=1_000)
    """Milliseconds without a heartbeat after which a client is forgotten; a constant in RocketMQ."""

    server_channel_max_idle_time_seconds: int = number(120, low=1)
    """Seconds without traffic after which a connection is closed."""

    store_path_root_dir: Path = Path("store")
    """Folder of everything that the broker keeps; RocketMQ uses `~/store`."""

    store_path_commit_log: Path | None = None
    """Folder of the commit log; empty means `commitlog` in `storePathRootDir`."""

    mapped_file_size_commit_log: int = number(1_073_741_824, low=2 * RECORD_EXTRA_BYTES)
    """Bytes of one commit log file."""

    mapped_file_size_consume_queue: int = number(6_000_000, low=CONSUME_QUEUE_UNIT_BYTES)
    """Bytes of one consume queue file; rounded up to whole units of 20."""

    message_index_enable: bool = True
    """Whether messages can be found by key."""

    max_hash_slot_num: int = number(5_000_000, low=1)
    """Hash slots of one index file."""

    max_index_num: int = number(20_000_000, low=2)
    """Entries of one index file."""

    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    """Whether a send is answered before or after its message is on the disk."""

    flush_interval_commit_log: int = number(500, low=1)
    """Longest time in milliseconds that a message waits for the disk when flushing is asynchronous."""

    flush_interval_consume_queue: int = number(1_000, low=1)
    """Milliseconds between two flushes of consume queues and the index."""

    sync_flush_timeout: int = number(5_000, low=1)
    """Milliseconds after which a send that waits for the disk is answered `FLUSH_DISK_TIMEOUT`."""

    check_crc_on_recover: bool = switch(True, "checkCRCOnRecover")
    """Whether records are checked against their CRCs when the store is opened after a crash."""

    enabled_append_prop_crc: bool | None = switch(None, "enabledAppendPropCRC")
    """Whether stored messages get the property `__CRC32#`, a CRC over the whole record; empty means in
    controller mode only. RocketMQ: `false`. It is checked wherever it is found."""

    accept_damaged_store: bool = False
    """Start once without the messages behind damage; what is truncated is kept next to the store (ours)."""

    accept_unserved_messages: bool = False
    """Open a store of a Java broker with half messages or POP check points, which stay undelivered (ours)."""

    file_reserved_time: int = number(72, low=1)
    """Hours that a commit log file is kept after its last change."""

    delete_when: str = "04"
    """Hours of the day, as `04` or `04;16`, in which expired files are deleted."""

    disk_max_used_space_ratio: int = number(75, low=1, high=100)
    """Percent of the disk above which expired files are deleted at any hour."""

    disk_space_clean_forcibly_ratio: int = number(85, low=1, high=100)
    """Percent of the disk above which the oldest files are deleted though they have not expired."""

    disk_space_warning_level_ratio: int = number(90, low=1, high=100)
    """Percent of the disk above which sends are refused."""

    clean_file_forcibly_enable: bool = True
    """Whether files that have not expired may be deleted when the disk is nearly full."""

    clean_resource_interval: int = number(10_000, low=10)
    """Milliseconds between two searches for files to delete."""

    delete_commit_log_files_interval: int = number(100, low=0)
    """Milliseconds between the deletion of two files, so that the disk is not busy with deleting."""

    max_message_size: int = number(4_194_304, low=1, high=1_073_741_824)
    """Most bytes of a body."""

    max_msgs_num_batch: int = number(64, low=1)
    """Most messages that a query by key returns."""

    max_transfer_count_on_message_in_memory: int = number(32, low=1)
    """Most messages that one pull returns."""

    max_transfer_bytes_on_message_in_memory: int = number(262_144, low=1)
    """Bytes after which a pull is answered with what has been found."""

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of the levels 1, 2, …, separated by spaces; units are s, m, h and d."""

    reject_transaction_message: bool = False
    """Whether half messages of transactions are refused; open ones are ended and checked as before."""

    transaction_time_out: int = number(6_000, low=0)
    """Milliseconds for which an open transaction is left alone before its producer is asked about it."""

    transaction_check_max: int = number(15, low=1)
    """Times that a producer is asked about a transaction before it is given up."""

    transaction_check_interval: int = number(30_000, low=10)
    """Milliseconds between two passes that check open transactions."""

    transaction_op_msg_max_size: int = number(4_096, low=64, high=RECORD_EXTRA_BYTES)
    """Most bytes of the body of one record that tells which half messages are resolved."""

    enable_transaction_metrics: bool = True
    """Whether open transactions are counted by topic, in metrics and in `config/transactionMetrics`."""

    transaction_metric_flush_interval: int = number(10_000, low=100)
    """Milliseconds between two writes of `config/transactionMetrics`."""

    flush_delay_offset_interval: int = number(10_000, low=100)
    """Milliseconds between two writes of the progress of delayed messages."""

    timer_wheel_enable: bool = True
    """Whether messages may wait for a time of their own (`TIMER_DELAY_SEC` and its kin). Without it new ones
    are refused; those that wait already are delivered."""

    timer_precision_ms: int = number(1_000, low=100)
    """Milliseconds of a slot of the timer wheel: 100, 200, 500 or 1,000; others are rounded down to these.
    The same on all brokers of a group."""

    timer_max_delay_sec: int = number(259_200, low=1)
    """Longest delay of a timer message in seconds; for more, sends are refused with MESSAGE_ILLEGAL."""

    timer_roll_window_slot: int = number(172_800)
    """A message that waits for so many slots or more is put aside again in between; values that do not fit
    the wheel become the largest that does. The same on all brokers of a group."""

    timer_flush_interval_ms: int = number(1_000, low=10)
    """Milliseconds between two flushes of the timer wheel and its log, while something changes."""

    mapped_file_size_timer_log: int = number(104_857_600, low=4_096)
    """Bytes of one timer log file."""

    timer_congest_num_each_slot: int = number(INT32_MAX, low=1)
    """With more messages in a slot of the timer wheel some are refused, and all from twice as many on."""

    timer_stop_enqueue: bool = False
    """Whether no message is taken into the timer wheel for now; sends are accepted all the same."""

    timer_stop_dequeue: bool = False
    """Whether no timer message is delivered for now."""

    append_topic_for_timer_delete_key: bool = False
    """Whether a recall names the topic of its message as well, so that equal ids in two topics differ."""

    recall_message_enable: bool = False
    """Whether producers may take back timer messages that wait."""

    revive_queue_num: int = number(8, low=1, high=256)
    """Queues that the topic of the check points of POP gets when it is made."""

    enable_retry_topic_v2: bool = False
    """Whether a message that comes back goes to `%RETRY%<group>+<topic>`; else to `%RETRY%<group>_<topic>`,
    which may belong to two pairs of names."""

    retrieve_message_from_pop_retry_topic_v1: bool = True
    """Whether pops read retry topics of the first kind as well when `enableRetryTopicV2` is set."""

    use_separate_retry_queue: bool = False
    """Whether a retry topic of POP gets as many queues as its topic, and each message keeps its queue."""

    pop_from_retry_probability: int = number(20, high=100)
    """Percent of the pops that read retry topics before the topic itself; others read them after it."""

    pop_from_retry_probability_for_priority: int = number(0, high=100)
    """The same for topics whose messages have priorities."""

    priority_order_asc: bool = True
    """Whether a pop reads the highest queue first, which then has the highest priority; off: the lowest."""

    pop_polling_size: int = number(1_024, low=1)
    """Pops and notifications that wait for one topic, group and queue; one more gets POLLING_FULL."""

    max_pop_polling_size: int = number(100_000, low=1)
    """Pops and notifications that wait in all; one more gets POLLING_FULL."""

    pop_long_polling_force_notify_interval: int = number(800, low=1)
    """Each message whose queue offset is a multiple of this wakes a waiting pop whatever its filter."""

    init_pop_offset_by_check_msg_in_mem: bool = True
    """Whether a group that begins at the newest message of a topic gets its first one, if that is new."""

    use_message_filter_for_notification: bool = True
    """Whether a notification says only of messages that its filter matches that they are there."""

    max_message_filter_num_for_notification: int = number(64, low=1)
    """Messages that are filtered for one notification; behind so many it says that there are some."""

    enable_pop_message_threshold: bool = False
    """Whether a queue with `popInflightMessageThreshold` messages in flight is left out by pops."""

    pop_inflight_message_threshold: int = number(10_000, low=1)
    """Messages of one queue that a group may have in flight, with `enablePopMessageThreshold`."""

    pop_response_return_actual_retry_topic: bool = False
    """Whether messages of a retry topic are answered as stored, else with the name of their topic."""

    pop_revive_skip_if_group_absent: bool = True
    """Whether messages of a group that does not exist any more are given up instead of put into its retry
    topic."""

    enable_notify_after_pop_order_lock_release: bool = True
    """Whether a waiting ordered pop is woken when its queue becomes free."""

    pop_check_points_max: int = number(500_000, low=1)
    """Open check points of this broker; pops beyond are answered with POLLING_FULL. About 400 bytes of memory
    each (ours)."""

    pop_check_point_copy_distance: int = number(16_384, low=64)
    """Records of a revive queue behind which an open check point is appended again, so that a new master
    reads no more than about these (ours)."""

    pop_clock_skew_ms: int = number(1_000)
    """Milliseconds by which clocks of replicas may differ: a new master makes messages that the one before it
    gave out visible so much later (ours)."""

    flush_consumer_offset_interval: int = number(5_000, low=100)
    """Milliseconds between two writes of the consumer offsets."""

    @property
    def serves_light_queues(self) -> bool:
        """Whether messages are put into the light queues that they name."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def appends_property_crc(self) -> bool:
        """What `enabledAppendPropCRC` says, or stands for when it is empty."""
        if self.enabled_append_prop_crc is None:
            return self.enable_controller_mode
        return self.enabled_append_prop_crc

    def problems(self) -> list[str]:
        """Return everything that is wrong, one text for each problem; empty when the broker can start."""
        found = range_problems(self)
        for name, text in (("brokerClusterName", self.broker_cluster_name), ("brokerName", self.broker_name)):
            if not NAME_PATTERN.fullmatch(text):
                found.append(f"{name}={text}: must be 1 to 127 letters, digits, _, -, % or |")
        found += [f"namesrvAddr: {text}" for text in address_problems(self.namesrv_addr)]
        for name, text in (
            ("advertisedAddress", self.advertised_address),
            ("advertisedMasterAddress", self.advertised_master_address),
        ):
            found += [f"{name}: {problem}" for problem in address_problems(text)]
            if ";" in text:
                found.append(f"{name}={text}: must be one HOST:PORT")
        if self.master_endpoint_slice and not SLICE_PATTERN.fullmatch(self.master_endpoint_slice):
            found.append(f"masterEndpointSlice={self.master_endpoint_slice}: must be <namespace>/<name>")
        if not self.broker_ip1:
            found.append("brokerIP1 is empty: give the address under which clients reach this broker")
        if self.http_port and self.http_port == self.listen_port:
            found.append(f"httpPort={self.http_port}: is the same as listenPort")
        if self.store_stream_enable and not self.http_port:
            found.append("storeStreamEnable=true needs an HTTP port: set httpPort")
        for entry in self.message_delay_level.split():
            if not DELAY_PATTERN.fullmatch(entry):
                found.append(f"messageDelayLevel: {entry!r} is not a number followed by s, m, h or d")
        for hour in self.delete_when.split(";"):
            if not re.fullmatch(r"[01]?[0-9]|2[0-3]", hour.strip()):
                found.append(f"deleteWhen: {hour!r} is not an hour from 00 to 23")
        if self.max_message_size + RECORD_EXTRA_BYTES > self.mapped_file_size_commit_log:
            found.append(
                f"maxMessageSize={self.max_message_size}: does not fit into a file of "
                f"mappedFileSizeCommitLog={self.mapped_file_size_commit_log} with "
                f"{RECORD_EXTRA_BYTES} for the rest of a record"
            )
        found += self._access_problems()
        found += self._controller_problems()
        found += self._dledger_problems()
        return found

    def first_user(self) -> tuple[str, str] | None:
        """Name and password of `initAuthenticationUser`."""
        return first_user_of(self.init_authentication_user)

    def inner_credentials(self) -> tuple[str, str] | None:
        """Access key and secret key of `innerClientAuthenticationCredentials`."""
        return inner_credentials_of(self.inner_client_authentication_credentials)

    def _access_problems(self) -> list[str]:
        """What is wrong with the settings of access control; no text has a secret in it."""
        found = []
        if self.authorization_enabled and not self.authentication_enabled:
            found.append(POLICIES_WITHOUT_NAMES)
        if self.authentication_enabled and self.refuse_signed_requests:
            found.append("refuseSignedRequests=true: not together with authenticationEnabled=true")
        found += credentials_problems(
            self.init_authentication_user, self.inner_client_authentication_credentials
        )
        in_group = self.enable_controller_mode or self.enable_dledger_commit_log
        if self.authentication_enabled and in_group and not self.inner_client_authentication_credentials:
            found.append(
                "innerClientAuthenticationCredentials is empty: brokers of a group need it with "
                "authenticationEnabled=true, the same for all"
            )
        for name, text in (
            ("authenticationWhitelist", self.authentication_whitelist),
            ("authorizationWhitelist", self.authorization_whitelist),
        ):
            if any(not code.strip().isdecimal() for code in text.split(",") if code.strip()):
                found.append(f"{name}={text}: must be request codes, separated by commas")
        return found

    def dledger_addresses(self) -> dict[str, str]:
        """Member id -> `host:port` of `dLegerPeers`; entries that are not so are left out."""
        return {
            match["id"]: match["address"]
            for match in map(PEER_PATTERN.fullmatch, self.dledger_peers.split(";"))
            if match is not None
        }

    def _dledger_problems(self) -> list[str]:
        """What is wrong with the settings of DLedger mode."""
        if not self.enable_dledger_commit_log:
            return []
        found = []
        if self.enable_controller_mode:
            found.append("enableDLegerCommitLog=true: not together with enableControllerMode=true")
        peers, addresses = [each for each in self.dledger_peers.split(";") if each], self.dledger_addresses()
        found += [
            f"dLegerPeers: {peer!r} is not n<number>-<host>:<port>"
            for peer in peers
            if PEER_PATTERN.fullmatch(peer) is None
        ]
        if len(addresses) < len(peers) or len(set(addresses.values())) < len(addresses):
            found.append("dLegerPeers: names a member or an address twice, or is not understood")
        for name, text in (
            ("dLegerSelfId", self.dledger_self_id),
            *(("preferredLeaderId", each) for each in self.preferred_leader_id.split(";") if each),
        ):
            if text not in addresses:
                found.append(f"{name}={text}: is not in dLegerPeers={self.dledger_peers}")
        if self.store_stream_enable:
            found.append(
                "storeStreamEnable=true: the log of a DLedger is not streamed; copy the store instead"
            )
        if self.enabled_append_prop_crc:
            found.append("enabledAppendPropCRC=true: records of a DLedger have none, as in RocketMQ")
        return found

    def _controller_problems(self) -> list[str]:
        """What is wrong with the settings of controller mode."""
        found = [f"controllerAddr: {text}" for text in address_problems(self.controller_addr)]
        if self.enable_controller_mode and not self.controller_addr.strip(" ;"):
            found.append("controllerAddr is empty: enableControllerMode=true needs at least one HOST:PORT")
        if self.controller_heart_beat_timeout_mills < 2 * self.broker_heartbeat_interval:
            found.append(
                f"controllerHeartBeatTimeoutMills={self.controller_heart_beat_timeout_mills}: must be at "
                f"least twice brokerHeartbeatInterval={self.broker_heartbeat_interval}"
            )
        if len(self.owner_uid) > OWNER_SIZE_MAX or "#" in self.owner_uid:
            found.append(
                f"ownerUid={self.owner_uid[:64]}: must be at most {OWNER_SIZE_MAX} characters without #"
            )
        identity = self.store_path_broker_identity
        if identity is not None and not identity.name:
            found.append(f"storePathBrokerIdentity={identity}: must name a file")
        return found
