"""Files of ACL 1.0 as users and policies of ACL 2.0."""

from __future__ import annotations

from brokerset_acl.plain_acl import migrate
from brokerset_acl.users import UserType

FILE: dict[str, object] = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {
            "accessKey": "RocketMQ",
            "secretKey": "12345678",
            "whiteRemoteAddress": "",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB", "wrong"],
            "groupPerms": ["groupA=DENY", "%RETRY%groupB=PUB|SUB", "groupC=ANY"],
        },
        {
            "accessKey": "rocketmq2",
            "secretKey": "12345678",
            "whiteRemoteAddress": "192.168.1.*",
            "admin": True,
        },
        {"accessKey": "RocketMQ", "secretKey": "second"},
        {"accessKey": "", "secretKey": "x"},
        "nothing",
    ],
}


def test_the_example_of_rocketmq() -> None:
    """Permissions become entries, defaults a default policy; what cannot be carried over is reported."""
    found = migrate([FILE, {}])
    assert [(user.username, user.password, user.type) for user in found.users.values()] == [
        ("RocketMQ", "12345678", UserType.NORMAL),
        ("rocketmq2", "12345678", UserType.SUPER),
    ]
    acl = found.acls["User:RocketMQ"]
    assert [(e.resource.key, "|".join(e.actions), str(e.decision)) for e in acl.custom] == [
        ("Topic:topicA", "All", "Deny"),
        ("Topic:topicB", "Pub|Sub", "Allow"),
        ("Topic:topicC", "Sub", "Allow"),
        ("Group:groupA", "All", "Deny"),
        ("Group:groupB", "Pub|Sub", "Allow"),
        ("Group:groupC", "All", "Deny"),
    ]
    assert [(e.resource.key, "|".join(e.actions), str(e.decision)) for e in acl.default] == [
        ("Topic:*", "All", "Deny"),
        ("Group:*", "Sub", "Allow"),
    ]
    assert "User:rocketmq2" not in found.acls
    assert [note.partition(":")[0] for note in found.notes] == [
        "globalWhiteRemoteAddresses",
        "RocketMQ",
        "RocketMQ",
        "rocketmq2",
        "account '' has no accessKey or no secretKey",
        "an account is no map",
    ]
    assert "groupPerms groupC: 'ANY' is no permission" in found.notes[2]
    assert not any("12345678" in note for note in found.notes)


def test_names_that_would_become_patterns_are_dropped() -> None:
    """ACL 1.0 compared them as they are: `*=PUB` allowed nothing."""
    account = {
        "accessKey": "a",
        "secretKey": "k",
        "topicPerms": ["*=PUB", "or*=PUB"],
        "groupPerms": ["*=SUB"],
    }
    found = migrate([{"accounts": [account]}])
    assert found.acls == {}
    assert len(found.notes) == 3
