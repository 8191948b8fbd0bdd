"""Decisions of the authoriser: super users, brokers, remembered decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.config.config_keys import AUTHORIZERS
from millstream_broker.security.acl import authorizer as module
from millstream_broker.security.acl.authorizer import AclAuthorizer, Authorizer
from millstream_broker.security.acl.config_rights import check_configuration
from millstream_broker.security.session import ANONYMOUS, ClientSession, PeerBroker, anonymous
from millstream_harness.in_process import running
from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
CLIENT = anonymous("PLAINTEXT", "10.0.0.1")
EVERYTHING = ResourcePattern(TOPIC, "*")
DENY_ALL = AccessControlEntry("User:*", "*", AclOperation.ALL, PermissionType.DENY)


def allow(operation: AclOperation, principal: str = ANONYMOUS) -> AccessControlEntry:
    return AccessControlEntry(principal, "*", operation, PermissionType.ALLOW)


def test_without_an_authorizer_everything_is_allowed() -> None:
    authorizer = Authorizer()
    assert authorizer.allows(CLIENT, WRITE, TOPIC, "a")
    authorizer.check(CLIENT, AclOperation.ALTER, CLUSTER, CLUSTER_NAME)
    assert authorizer.operations(CLIENT, TOPIC, "a") == 0b110111111000


def test_a_super_user_may_do_what_everybody_is_denied() -> None:
    authorizer = AclAuthorizer({"User:admin"})
    authorizer.replace(EVERYTHING, [DENY_ALL])
    admin = CLIENT._replace(principal="User:admin")
    assert authorizer.allows(admin, WRITE, TOPIC, "a")
    assert authorizer.permits_some(admin, WRITE, TOPIC)
    assert not authorizer.allows(CLIENT, WRITE, TOPIC, "a")


def test_a_broker_of_the_cluster_may_do_everything() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(EVERYTHING, [DENY_ALL])
    peer = PeerBroker(1, 7)
    assert authorizer.allows(ClientSession(peer.principal, peer, "PLAINTEXT", "10.0.0.1"), READ, TOPIC, "a")


def test_a_change_of_rules_ends_remembered_decisions() -> None:
    authorizer = AclAuthorizer()
    pattern, before = ResourcePattern(TOPIC, "a"), authorizer.version
    assert not authorizer.allows(CLIENT, READ, TOPIC, "a")
    assert not authorizer.permits_some(CLIENT, READ, TOPIC)
    authorizer.replace(pattern, [allow(READ)])
    assert authorizer.version > before
    assert authorizer.allows(CLIENT, READ, TOPIC, "a")
    assert authorizer.permits_some(CLIENT, READ, TOPIC)
    before = authorizer.version
    authorizer.replace_all({pattern: {allow(READ)}})
    assert authorizer.version == before, "nothing has changed"
    authorizer.replace_all({ResourcePattern(TOPIC, "b"): {allow(READ)}})
    assert authorizer.version > before
    assert not authorizer.allows(CLIENT, READ, TOPIC, "a")
    assert authorizer.allows(CLIENT, READ, TOPIC, "b")


@pytest.mark.parametrize("allows_without_acl", [False, True])
def test_a_resource_without_a_rule_is_for_everybody_if_so_configured(allows_without_acl: bool) -> None:
    authorizer = AclAuthorizer(allows_without_acl=allows_without_acl)
    authorizer.replace(ResourcePattern(TOPIC, "a"), [allow(READ, "User:bob")])
    assert authorizer.allows(CLIENT, READ, TOPIC, "b") is allows_without_acl
    assert authorizer.permits_some(CLIENT, READ, TOPIC) is allows_without_acl
    assert not authorizer.allows(CLIENT, READ, TOPIC, "a")


def test_a_check_fails_with_the_error_of_the_resource() -> None:
    with pytest.raises(ApiError) as refused:
        AclAuthorizer().check(CLIENT, READ, ResourceType.GROUP, "g")
    assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(ApiError) as refused:
        AclAuthorizer().check(CLIENT, AclOperation.ALTER, CLUSTER, CLUSTER_NAME)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_operations_are_the_allowed_ones() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(ResourcePattern(TOPIC, "a", PatternType.PREFIXED), [allow(READ)])
    assert authorizer.operations(CLIENT, TOPIC, "abc") == 1 << READ | 1 << DESCRIBE


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DECISIONS", 10)
    authorizer = AclAuthorizer()
    for number in range(100):
        authorizer.allows(CLIENT, READ, TOPIC, f"t{number}")
    assert len(authorizer._decisions) <= 10
    authorizer.replace(ResourcePattern(TOPIC, "a"), [allow(READ)])
    authorizer.allows(CLIENT, READ, TOPIC, "x" * 30_000)
    assert not authorizer._decisions


def test_without_an_authorizer_some_resource_may_be_written() -> None:
    authorizer = Authorizer()
    assert authorizer.permits_some(CLIENT, WRITE, TOPIC)
    assert authorizer.cluster_operations(CLIENT) == authorizer.operations(CLIENT, CLUSTER, CLUSTER_NAME) != 0


def test_operations_on_the_cluster_need_describe() -> None:
    authorizer = AclAuthorizer()
    cluster = ResourcePattern(CLUSTER, CLUSTER_NAME)
    authorizer.replace(cluster, [allow(AclOperation.CREATE)])
    assert authorizer.cluster_operations(CLIENT) == 0
    authorizer.replace(cluster, [allow(AclOperation.CREATE), allow(DESCRIBE)])
    assert authorizer.cluster_operations(CLIENT) == 1 << AclOperation.CREATE | 1 << DESCRIBE


def test_decisions_are_remembered_up_to_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DECISIONS", 2)
    authorizer = AclAuthorizer()
    for name, remembered in (("x" * module.LONGEST_NAME, 1), ("b", 2), ("c", 1), ("d", 2), ("d" * 257, 2)):
        authorizer.allows(CLIENT, READ, TOPIC, name)
        assert len(authorizer._decisions) == remembered


@pytest.mark.parametrize("kind", [4, 8, 16])
def test_the_configuration_of_brokers_needs_a_right_on_the_cluster(kind: int) -> None:
    authorizer = AclAuthorizer()
    with pytest.raises(ApiError) as refused:
        check_configuration(authorizer, CLIENT, AclOperation.ALTER_CONFIGS, kind, "1")
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    check_configuration(authorizer, CLIENT, AclOperation.ALTER_CONFIGS, 99, "1")


ALTER = AclOperation.ALTER
OF_CLUSTER = ResourcePattern(CLUSTER, "kafka-cluster")


@pytest.mark.parametrize(
    ("authorizer", "entries", "locked"),
    [
        (AclAuthorizer(), [], True),
        (AclAuthorizer({"User:admin"}), [DENY_ALL], False),
        (AclAuthorizer(allows_without_acl=True), [], False),
        (AclAuthorizer(allows_without_acl=True), [allow(DESCRIBE)], True),
        (AclAuthorizer(), [allow(DESCRIBE)], True),
        (AclAuthorizer(), [allow(ALTER)], False),
        (AclAuthorizer(), [allow(AclOperation.ALL)], False),
        (AclAuthorizer(), [allow(ALTER), DENY_ALL], True),
        (AclAuthorizer(), [allow(ALTER), DENY_ALL._replace(principal="User:bob")], False),
        (AclAuthorizer(), [DENY_ALL._replace(principal="User:bob")], True),
    ],
)
def test_rules_that_lock_everybody_out_are_detected(
    authorizer: AclAuthorizer, entries: list[AccessControlEntry], locked: bool
) -> None:
    authorizer.replace(OF_CLUSTER, entries)
    assert authorizer.locks_everybody_out is locked


def test_a_rule_that_locks_everybody_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    authorizer = AclAuthorizer()
    authorizer.replace(OF_CLUSTER, [allow(ALTER)])
    authorizer.report_lock_out()
    assert not caplog.records
    for entries in ([allow(ALTER), DENY_ALL], [DENY_ALL]):
        authorizer.replace(OF_CLUSTER, entries)
    assert [each.getMessage() for each in caplog.records] == [
        "no access rule lets anybody alter the cluster, and there is no super user, so nobody can create or delete a"
        " rule: set super.users to User:NAME, and restart the brokers"
    ]
    authorizer.replace(OF_CLUSTER, [allow(ALTER)])
    authorizer.replace(OF_CLUSTER, [])
    assert len(caplog.records) == 2


async def test_a_broker_whose_rules_nobody_can_change_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, {"authorizer.class.name": AUTHORIZERS[0]}):
        assert "set super.users to User:NAME" in caplog.text
