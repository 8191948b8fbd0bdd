"""Access rules: what a client gets without a right, with single rights, and with denials, beside Apache Kafka.

Nobody authenticates here: the two clients differ by their address. The administrator's is 127.0.0.1, and access rules
allow it everything; the other one's is 127.0.0.2. Kafka's controller authorises by rules of its own, which follow a
moment later, so requests to it are repeated until the responses agree.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from millstream_harness.access_rows import EXISTING, OTHER, ROWS, Needed, Row
from millstream_harness.beside import Beside
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_kafka.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from millstream_kafka.protocol import (
    create_acls,
    delete_acls,
    describe_acls,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_commit,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = [pytest.mark.soak, pytest.mark.once]

CONFIG = {
    "broker.id": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "log.retention.check.interval.ms": "86400000",
}
ADMINISTRATOR, CLIENT, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
ANONYMOUS = "User:ANONYMOUS"
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
BY_THE_CONTROLLER = {19, 20, 30, 31, 33, 37, 43, 44, 45, 46, 49, 51}
Rule = tuple[Needed, PermissionType]
SETS_OF_RULES = 30
EVERY = {
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
}
"""A filter of all rules."""
_numbers = itertools.count(1)


class Both(NamedTuple):
    """Both brokers, as the administrator and as the client reach them."""

    admin: Beside
    client: Beside

    def rule(self, *rules: Rule) -> None:
        """The client's access rules from now on."""
        self.admin.ask(delete_acls.API, [3], filters=[{**EVERY, "host_filter": CLIENT}])
        creations = [_creation(needed, permission, CLIENT) for needed, permission in rules]
        for answer in self.admin.ask(create_acls.API, [3], creations=creations)[0]:
            assert [each["error_code"] for each in answer["results"]] == [0] * len(rules)
        self.admin.until(
            lambda answer: sum(len(each["acls"]) for each in answer["resources"]) == len(set(rules)),
            describe_acls.API,
            3,
            **EVERY | {"host_filter": CLIENT},
        )

    def compare(self, row: Row, rules: Sequence[Rule]) -> None:
        refused = not row.is_enough or (row.needs[0], ALLOW) not in rules or (row.needs[0], DENY) in rules
        deadline = time.monotonic() + 10
        while True:
            try:
                fields: Any = _numbered(row.fields, str(next(_numbers)))
                self.client.same(row.api, row.versions, **fields, but=row.but if refused else {})
                return
            except AssertionError:
                if row.api.key not in BY_THE_CONTROLLER or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _creation(needed: Needed, permission: PermissionType, host: str) -> dict[str, Any]:
    operation, resource_type, name = needed
    is_prefix = name.endswith("*") and name != "*"
    return {
        "resource_type": resource_type,
        "resource_name": name.rstrip("*") if is_prefix else name,
        "resource_pattern_type": PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        "principal": ANONYMOUS,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def _numbered(value: Any, number: str) -> Any:
    if isinstance(value, str):
        return value.replace("{n}", number)
    if isinstance(value, list):
        return [_numbered(each, number) for each in value]
    if isinstance(value, Mapping):
        return {key: _numbered(each, number) for key, each in value.items()}
    return value


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("access")
    with (
        InProcessBroker(folder / "ours", CONFIG) as ours,
        KafkaProcess(folder / "kafka", CONFIG) as kafka,
    ):
        found = Both(
            Beside(ours.bootstrap, kafka.bootstrap, ADMINISTRATOR),
            Beside(ours.bootstrap, kafka.bootstrap, CLIENT),
        )
        _prepare(found)
        yield found
        for each in found:
            each.close()


def _prepare(both: Both) -> None:
    admin = both.admin
    everything: Sequence[Needed] = [
        (AclOperation.ALL, ResourceType.CLUSTER, CLUSTER_NAME),
        (AclOperation.ALL, ResourceType.TOPIC, "*"),
        (AclOperation.ALL, ResourceType.GROUP, "*"),
        (AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "*"),
    ]
    rules = [_creation(needed, ALLOW, ADMINISTRATOR) for needed in everything]
    for answer in admin.ask(create_acls.API, [3], creations=rules)[0]:
        assert [each["error_code"] for each in answer["results"]] == [0] * len(rules)
    admin.create(EXISTING, OTHER)
    for mine, its in zip(admin.peers, both.client.peers, strict=True):
        its.kept = mine.kept
    admin.until(
        lambda answer: answer["coordinators"][0]["error_code"] == 0,
        find_coordinator.API,
        4,
        coordinator_keys=["committed"],
        key_type=0,
    )
    admin.until(
        lambda answer: answer["coordinators"][0]["error_code"] == 0,
        find_coordinator.API,
        4,
        coordinator_keys=["tx-0"],
        key_type=1,
    )
    admin.until(  # Kafka first needs a block of ids
        lambda answer: answer["error_code"] == 0,
        init_producer_id.API,
        3,
        transactional_id=None,
        producer_id=-1,
        producer_epoch=-1,
    )
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
        }
        for name in (EXISTING, OTHER)
    ]
    admin.until(
        lambda answer: answer["topics"][0]["partitions"][0]["error_code"] == 0,
        offset_commit.API,
        8,
        group_id="committed",
        generation_id_or_member_epoch=-1,
        topics=topics,
    )


def test_rule_for_an_empty_host(both: Both) -> None:
    """It is stored, and applies to nobody; Kafka 4.4 refuses it."""
    needed = (AclOperation.READ, ResourceType.TOPIC, "from-nowhere")
    rule = _creation(needed, ALLOW, "")
    if is_before(4, 4):
        both.admin.same(create_acls.API, creations=[rule])
    else:
        (answers,) = both.admin.ask(create_acls.API, [3], creations=[rule])
        assert [each["results"][0]["error_code"] for each in answers] == [0, ErrorCode.INVALID_REQUEST]
    both.admin.ask(delete_acls.API, [3], filters=[{**EVERY, "resource_name_filter": "from-nowhere"}])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_responses_are_kafkas(both: Both, row: Row) -> None:
    allowed: list[Rule] = [(needed, ALLOW) for needed in row.needs]
    scenarios: list[list[Rule]] = [[], *([rule] for rule in allowed)]
    if row.is_complete:
        scenarios.append(allowed)
    scenarios += [[*allowed, (needed, DENY)] for needed in row.needs]
    for rules in scenarios:
        both.rule(*rules)
        try:
            both.compare(row, rules)
        except AssertionError as error:
            said = ", ".join(f"{permission.name} {needed}" for needed, permission in rules)
            raise AssertionError(f"with {said or 'no rule'}: {error}") from None


@pytest.mark.parametrize("seed", range(SETS_OF_RULES))
def test_decisions_by_many_rules_are_kafkas(both: Both, seed: int) -> None:
    """Allowed operations on topics of related names, by rules that overlap."""
    chance = random.Random(seed)
    names = ["a", "ab", "abc", "b"]
    rules = {
        tuple(sorted(each.items())): each
        for _ in range(chance.randint(2, 9))
        for each in [
            {
                "resource_type": ResourceType.TOPIC,
                "resource_name": chance.choice([*names, "*"]),
                "resource_pattern_type": chance.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                "principal": chance.choice([ANONYMOUS, "User:*", "User:other"]),
                "host": chance.choice([CLIENT, CLIENT, STRANGER]),
                "operation": chance.choice([AclOperation.ALL, *OPERATIONS[ResourceType.TOPIC]]),
                "permission_type": chance.choice([ALLOW, ALLOW, DENY]),
            }
        ]
    }
    for host in (CLIENT, STRANGER):
        both.admin.ask(delete_acls.API, [3], filters=[{**EVERY, "host_filter": host}])
    for answer in both.admin.ask(create_acls.API, [3], creations=list(rules.values()))[0]:
        assert [each["error_code"] for each in answer["results"]] == [0] * len(rules)
    both.admin.until(
        lambda answer: (
            sum(
                acl["host"] in (CLIENT, STRANGER)
                for resource in answer["resources"]
                for acl in resource["acls"]
            )
            == len(rules)
        ),
        describe_acls.API,
        3,
        **EVERY,
    )
    both.client.same(
        metadata.API,
        [9],
        topics=[{"name": name} for name in [*names, "abcd", "c"]],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    both.client.same(init_producer_id.API, [4], transactional_id=None, producer_id=-1, producer_epoch=-1)
