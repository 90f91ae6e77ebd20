"""What an outsider tries at each port of a set: the sentences of docs/security.md, "Ports", as programs.

Each attempt ends well only if it brought everything that it is about; else it raises, and `outsider.outcome` says how.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    DLedgerBody,
    DLedgerCode,
    DLedgerRequestCode,
    GetRequest,
    GetResponse,
)
from brokerset_protocol.bodies.dledger import VoteRequest as LedgerVoteRequest
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.ha_packets import (
    Ack,
    SlaveHandshake,
    decode_master_handshake,
    encode_ack,
    encode_slave_handshake,
)
from brokerset_raft import frames
from brokerset_raft.frames import Frame, Hello, Refusal, Welcome
from brokerset_raft.messages import VoteRequest
from brokerset_rig import wire
from brokerset_rig.outsider import SECONDS_MAX, Outsider, Refused, Requests

TERMS_AHEAD: Final = 1_000
"""How far the term of a forged candidate is ahead of that of the set."""

LEDGER_MEMBERS: Final = ("n0", "n1", "n2")

ENTRIES_MAX: Final = 100
"""Entries of a ledger that are read."""

REPLACEMENTS_MAX: Final = 20
"""How often the outsider tries to be faster than the slave that it replaces."""

FORGED_ADDRESS: Final = "127.0.0.1:1"
"""Where the outsider's broker is said to be; nobody listens there."""


@dataclass(frozen=True, slots=True)
class Target:
    """A set, as whoever was once its client knows it; without ports that it does not have."""

    cluster: str = ""
    group: str = ""
    topic: str = ""
    body: bytes = b""
    """Of a message of the topic, in the log of the group."""

    password: bytes = b""
    """Of a user of the group; empty if there is none."""

    remoting: tuple[str, ...] = ()
    """Both remoting ports of the master."""

    ha: tuple[str, ...] = ()
    """HA port of the master."""

    slave_id: int = 0
    """Of a real slave."""

    ledger: tuple[str, ...] = ()
    """DLedger port of the leader."""

    broker_http: tuple[str, ...] = ()
    name_servers: tuple[str, ...] = ()
    raft: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    """In the order of `raft`."""

    external: tuple[str, ...] = ()
    """Ports of name servers for clients outside, with the entry `KV_ENTRY`."""

    controller_http: tuple[str, ...] = ()
    operator_http: tuple[str, ...] = ()


KV_ENTRY: Final = ("shop", "known", "for whoever knows the name")
"""Namespace, key and value."""

Attempt = Callable[[Outsider, str, Target], None]
"""At an address of a set."""


@dataclass(frozen=True, slots=True)
class Port:
    """A row of the table: where it is, and what is tried there."""

    addresses: Callable[[Target], tuple[str, ...]]
    attempts: tuple[Attempt, ...]


# 10911, 10909


def make_topic(outsider: Outsider, address: str, target: Target) -> None:
    with outsider.requests(address) as client:
        client.served(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": _topic_at(address), "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
             "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        )  # fmt: skip


def write(outsider: Outsider, address: str, target: Target) -> None:
    with outsider.requests(address) as client:
        client.served(RequestCode.SEND_MESSAGE_V2, wire.send_ext(_topic_at(address), 0, ""), b"forged")


def read(outsider: Outsider, address: str, target: Target) -> None:
    """What others wrote."""
    with outsider.requests(address) as client:
        answer = client.served(RequestCode.PULL_MESSAGE, wire.pull_ext(target.topic, 0, 0))
    assert target.body in {record.body for record in wire.records(answer.body)}


def change_settings(outsider: Outsider, address: str, target: Target) -> None:
    with outsider.requests(address) as client:
        client.served(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=73\n")
        assert b"fileReservedTime=73" in client.served(RequestCode.GET_BROKER_CONFIG).body


def make_user(outsider: Outsider, address: str, target: Target) -> None:
    name = _topic_at(address)
    user = {"username": name, "password": "forged", "userType": "Super"}
    with outsider.requests(address) as client:
        client.served(RequestCode.AUTH_CREATE_USER, {"username": name}, json.dumps(user).encode())


def delete_topic(outsider: Outsider, address: str, target: Target) -> None:
    with outsider.requests(address) as client:
        client.served(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": _topic_at(address)})


def _topic_at(address: str) -> str:
    return f"outsider-{address.rpartition(':')[2]}"


# 10912


def read_the_log(outsider: Outsider, address: str, target: Target) -> None:
    """All that is in it, passwords, too, as a slave without anything."""
    with outsider.socket(address) as link:
        link.sendall(encode_slave_handshake(SlaveHandshake(9)))
        _receive_until(link, lambda data: decode_master_handshake(data) is not None)
        link.sendall(encode_ack(Ack(0)))
        _receive_until(link, lambda data: target.body in data and target.password in data)


def replace_a_slave(outsider: Outsider, address: str, target: Target) -> None:
    """The real one loses its connection; when it has connected again, this one is closed."""
    for _ in range(REPLACEMENTS_MAX - 1):
        with suppress(ConnectionError):
            return _replace_a_slave(outsider, address, target)
    return _replace_a_slave(outsider, address, target)


def _replace_a_slave(outsider: Outsider, address: str, target: Target) -> None:
    """Raises `ConnectionError` if the real one has connected again before the master's answer was read."""
    with outsider.socket(address) as link:
        link.sendall(encode_slave_handshake(SlaveHandshake(target.slave_id)))
        _receive_until(link, lambda data: decode_master_handshake(data) is not None)
        link.sendall(encode_ack(Ack(0)))
        with suppress(ConnectionError):
            _receive_until(link, lambda data: False)


def _receive_until(link: socket.socket, is_enough: Callable[[bytes], bool]) -> bytes:
    """What came. Raises `ConnectionError` at the end."""
    data, deadline = b"", time.monotonic() + SECONDS_MAX
    while not is_enough(data):
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:g} s; {len(data)} bytes came"
        piece = link.recv(1 << 18)
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return data


# 40911


def read_the_ledger(outsider: Outsider, address: str, target: Target) -> None:
    """Every entry, from the leader."""
    member = _member_at(outsider, address, target)
    deadline = time.monotonic() + SECONDS_MAX
    for index in range(ENTRIES_MAX):
        answer = _get_entry(outsider, address, target, member, index)
        while answer.code == DLedgerCode.LEADER_NOT_READY and time.monotonic() < deadline:
            time.sleep(0.01)  # the machine was busy for longer than a lease
            answer = _get_entry(outsider, address, target, member, index)
        assert answer.code == DLedgerCode.SUCCESS, answer.code
        if any(target.body in entry.body for entry in answer.entries):
            return
    raise AssertionError(f"none of {ENTRIES_MAX} entries has the message")


def depose_the_leader(outsider: Outsider, address: str, target: Target) -> None:
    """A candidate's request in the name of another member is believed."""
    member = _member_at(outsider, address, target)
    candidate = next(each for each in LEDGER_MEMBERS if each != member)
    term = _get_entry(outsider, address, target, member, 0).term + TERMS_AHEAD
    forged = LedgerVoteRequest(
        group=target.group, remote_id=member, local_id=candidate, leader_id=candidate, term=term,
        ledger_end_index=1 << 40, ledger_end_term=term - 1, brokerset=OWN_VERSION, transfer=True,
    )  # fmt: skip
    _of_dledger(outsider, address, DLedgerRequestCode.VOTE, forged)
    deadline = time.monotonic() + SECONDS_MAX
    while _get_entry(outsider, address, target, member, 0).term < term:
        assert time.monotonic() < deadline, f"the term does not become {term}"
        time.sleep(0.01)


def _member_at(outsider: Outsider, address: str, target: Target) -> str:
    """Which member it is, found by trying. Raises `Refused`."""
    for member in LEDGER_MEMBERS:
        if _get_entry(outsider, address, target, member, 0).code != DLedgerCode.UNKNOWN_MEMBER:
            return member
    raise AssertionError(f"{address} is none of {LEDGER_MEMBERS}")


def _get_entry(outsider: Outsider, address: str, target: Target, member: str, index: int) -> GetResponse:
    request = GetRequest(group=target.group, remote_id=member, begin_index=index)
    return GetResponse.from_json(_of_dledger(outsider, address, DLedgerRequestCode.GET, request))


def _of_dledger(outsider: Outsider, address: str, code: int, body: DLedgerBody) -> bytes:
    """The body of an answer. Raises `Refused`."""
    with outsider.requests(address) as client:
        answer = client.call(code, {}, body.to_json())
    if answer.code != DLedgerCode.SUCCESS:
        raise Refused(answer.code, answer.remark or "")
    return answer.body


# 8080


def read_metrics(outsider: Outsider, address: str, target: Target) -> None:
    status, text = outsider.get(address, "/metrics")
    assert (status, b"# HELP" in text) == (200, True), status
    assert outsider.get(address, "/healthz")[0] == 200


def read_the_store(outsider: Outsider, address: str, target: Target) -> None:
    """The files of the log."""
    status, text = outsider.get(address, f"/store/files/commitlog/{0:020d}")
    if status != 200:
        raise Refused(status, text.decode())
    assert target.body in text


# 9876


def replace_a_route(outsider: Outsider, address: str, target: Target) -> None:
    """The master of the group is said to be elsewhere."""
    with registered_elsewhere(outsider, address, target, FORGED_ADDRESS):
        pass


def put_kv_configuration(outsider: Outsider, address: str, target: Target) -> None:
    where = {"namespace": "outsider", "key": "k"}
    with outsider.requests(address) as client:
        client.served(RequestCode.PUT_KV_CONFIG, {**where, "value": "forged"})
        assert client.served(RequestCode.GET_KV_CONFIG, where).ext["value"] == "forged"


def read_and_change_nothing(outsider: Outsider, address: str, target: Target) -> None:
    """A port for clients outside serves reads; it does not know the requests that the other port refuses or serves."""
    namespace, key, value = KV_ENTRY
    where = {"namespace": namespace, "key": key}
    with outsider.requests(address) as client:
        assert client.served(RequestCode.GET_KV_CONFIG, where).ext["value"] == value
        for code in (
            RequestCode.PUT_KV_CONFIG,
            RequestCode.REGISTER_BROKER,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        ):
            answer = client.call(code, {**where, "value": "forged", "brokerName": target.group})
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, (code, answer.remark)
        assert client.served(RequestCode.GET_KV_CONFIG, where).ext["value"] == value


@contextmanager
def registered_elsewhere(outsider: Outsider, address: str, target: Target, forged: str) -> Iterator[None]:
    """A name server says that the master of the group is at `forged`, as long as the block runs. Raises `Refused`."""
    topic = {"topicName": target.topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0,
             "topicFilterType": "SINGLE_TAG", "order": False}  # fmt: skip
    newest = {"timestamp": time.time_ns() // 1_000_000, "counter": 1 << 40, "stateVersion": 1 << 40}
    table = {"topicConfigTable": {target.topic: topic}, "dataVersion": newest}
    body = {"topicConfigSerializeWrapper": table, "filterServerList": []}
    ext = {"brokerName": target.group, "brokerAddr": forged, "clusterName": target.cluster,
           "haServerAddr": "127.0.0.1:2", "brokerId": "0", "compressed": "false", "bodyCrc32": "0"}  # fmt: skip
    with outsider.requests(address) as client:
        client.served(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode())
        route = client.served(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": target.topic}).body
        (group,) = json.loads(route)["brokerDatas"]
        assert group["brokerAddrs"]["0"] == forged
        yield


# 9877


def end_a_term(outsider: Outsider, address: str, target: Target) -> None:
    """A candidate's request in the name of a neighbour is believed: whoever leads does so no longer."""
    controller = target.controllers[target.raft.index(address)]
    with outsider.socket(address) as link:
        group, node = _greet(link, "?", 0)
    with outsider.socket(address) as link:
        group, node = _greet(link, group, node)
    with outsider.socket(address) as link:
        assert _greet(link, group, node) == (group, node)
        term = _term_of(outsider, controller) + TERMS_AHEAD
        link.sendall(frames.encode(VoteRequest(term, 1 << 40, term - 1, transfer=True)))
        deadline = time.monotonic() + SECONDS_MAX
        while _term_of(outsider, controller) < term:
            assert time.monotonic() < deadline, f"the term does not become {term}"
            time.sleep(0.01)


def _greet(link: socket.socket, group: str, node: int) -> tuple[str, int]:
    """The group and the number of a node, as far as its answer says; it says what is wrong with a greeting."""
    link.sendall(frames.encode(Hello(frames.PROTOCOL_VERSION, group, (node + 1) % 3, node)))
    answer = _next_frame(link, frames.Decoder())
    if isinstance(answer, Refusal) and answer.reason.startswith("group"):
        return answer.reason.split("'")[3], node
    if isinstance(answer, Refusal):
        return group, int(answer.reason.partition("this is node ")[2].partition(";")[0])
    assert isinstance(answer, Welcome)
    return group, node


def _term_of(outsider: Outsider, controller: str) -> int:
    with outsider.requests(controller) as client:
        return int(json.loads(client.served(RequestCode.BROKERSET_CONTROLLER_STATUS).body)["term"])


def _next_frame(link: socket.socket, decoder: frames.Decoder) -> Frame:
    while True:
        data = link.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        for frame in decoder.feed(data):
            return frame


# 9878


def be_a_producer(outsider: Outsider, address: str, target: Target) -> None:
    """Of an ordered subject, with an epoch that fences who had the id before."""
    _use_a_subject(outsider, address, RequestCode.BROKERSET_START_PRODUCER, {"producerId": "outsider"})


def be_a_consumer(outsider: Outsider, address: str, target: Target) -> None:
    """A member of a group, which gets partitions of the subject."""
    member = {"consumerGroup": "outsiders", "session": "0ff51de", "clientId": "outsider",
              "consumeStrategy": "Exclusive"}  # fmt: skip
    _use_a_subject(outsider, address, RequestCode.BROKERSET_CONSUMER_HEARTBEAT, member)


def _use_a_subject(outsider: Outsider, address: str, code: int, ext: dict[str, str]) -> None:
    """Whoever is let through and hears that there is no such subject makes it, and asks again."""
    asked = {"subject": "of-outsiders", **ext}

    def use(client: Requests) -> None:
        try:
            client.served(code, asked)
        except Refused as refused:
            if refused.code != ResponseCode.BROKERSET_SUBJECT_UNKNOWN:
                raise
            wanted = {"subject": asked["subject"], "create": "true"}
            client.served(RequestCode.BROKERSET_SUBJECT_ROUTE, wanted)
            client.served(code, asked)

    _at_leader(outsider, address, use)


def become_a_member(outsider: Outsider, address: str, target: Target) -> None:
    """With an id of its own in the group."""
    group = {"clusterName": target.cluster, "brokerName": target.group}

    def apply(client: Requests) -> None:
        next_id = client.served(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, group).ext["nextBrokerId"]
        check_code = f"{FORGED_ADDRESS};1"
        applied = {"appliedBrokerId": next_id, "registerCheckCode": check_code}
        client.served(RequestCode.CONTROLLER_APPLY_BROKER_ID, group | applied)
        registered = {"brokerId": next_id, "brokerAddress": FORGED_ADDRESS, "invokeTime": "1"}
        client.served(RequestCode.CONTROLLER_REGISTER_BROKER, group | registered)

    _at_leader(outsider, address, apply)


def become_the_master(outsider: Outsider, address: str, target: Target) -> None:
    """In the name of the real one the outsider says that it is in sync, and asks to be elected."""
    group = {"clusterName": target.cluster, "brokerName": target.group}

    def be_elected(client: Requests) -> None:
        info = client.served(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": target.group})
        next_id = int(client.served(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, group).ext["nextBrokerId"])
        own_id, epoch = next_id - 1, int(info.ext["masterEpoch"])
        beat = {**group, "brokerAddr": FORGED_ADDRESS, "brokerId": str(own_id), "epoch": str(epoch),
                "maxOffset": str(1 << 40), "confirmOffset": "0", "heartbeatTimeoutMills": "60000"}  # fmt: skip
        client.served(RequestCode.BROKER_HEARTBEAT, beat)
        in_sync = json.loads(info.body)
        in_sync["syncStateSet"] = sorted({*in_sync["syncStateSet"], own_id})
        said = {"brokerName": target.group, "masterBrokerId": info.ext["masterBrokerId"],
                "masterEpoch": str(epoch), "invokeTime": "1"}  # fmt: skip
        client.served(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, said, json.dumps(in_sync).encode())
        asked = {**group, "brokerId": str(own_id), "designateElect": "true", "invokeTime": "1"}
        elected = client.served(RequestCode.CONTROLLER_ELECT_MASTER, asked)
        assert elected.ext["masterAddress"] == FORGED_ADDRESS

    _at_leader(outsider, address, be_elected)


def _at_leader(outsider: Outsider, address: str, act: Callable[[Requests], None]) -> None:
    """Act at the controller that leads, whichever that is by then. Raises `Refused`."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with outsider.requests(address) as client:
            known = client.served(RequestCode.CONTROLLER_GET_METADATA_INFO).ext
        try:
            if leader := known.get("controllerLeaderAddress"):
                with outsider.requests(leader) as client:
                    act(client)
                return
        except Refused as refused:
            if refused.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise
        assert time.monotonic() < deadline, "no controller leads"
        time.sleep(0.05)


PORTS: Final[Mapping[str, Port]] = {
    "10911, 10909": Port(
        lambda target: target.remoting,
        (make_topic, write, read, change_settings, make_user, delete_topic),
    ),
    "10912": Port(lambda target: target.ha, (read_the_log, replace_a_slave)),
    "40911": Port(lambda target: target.ledger, (read_the_ledger, depose_the_leader)),
    "8080 of brokers": Port(lambda target: target.broker_http, (read_metrics, read_the_store)),
    "9876": Port(lambda target: target.name_servers, (replace_a_route, put_kv_configuration)),
    "9877": Port(lambda target: target.raft, (end_a_term,)),
    "9878": Port(
        lambda target: target.controllers[:1],
        (be_a_producer, be_a_consumer, become_a_member, become_the_master),
    ),
    "9879": Port(lambda target: target.external, (read_and_change_nothing,)),
    "8080 of controllers, name servers": Port(lambda target: target.controller_http, (read_metrics,)),
    "8080 of the operator": Port(lambda target: target.operator_http, (read_metrics,)),
}
"""By the first cell of a row of docs/security.md."""
