"""Kafka's own tool for access rules, `kafka-acls`, with our broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import run_kafka_tool

pytestmark = pytest.mark.soak

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def test_the_tool_adds_lists_and_removes_rules(start_broker: Callable[..., InProcessBroker]) -> None:
    broker = start_broker(CONFIG)

    def acls(*args: str) -> str:
        return run_kafka_tool("acls", "--bootstrap-server", broker.bootstrap, *args).stdout

    consumer = ("--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "team/a")
    assert "Adding ACLs for resource" in acls("--add", *consumer)
    prefixed = ("--topic", "ord", "--resource-pattern-type", "prefixed")
    acls(
        "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Write", *prefixed
    )
    listed = acls("--list")
    for expected in (
        "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)",
        "ResourcePattern(resourceType=GROUP, name=team/a, patternType=LITERAL)",
        "ResourcePattern(resourceType=TOPIC, name=ord, patternType=PREFIXED)",
        "(principal=User:alice, host=*, operation=DESCRIBE, permissionType=ALLOW)",
        "(principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY)",
    ):
        assert expected in listed
    matching = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "name=ord," in matching
    assert "GROUP" not in matching
    acls("--remove", "--force", "--topic", "orders", "--resource-pattern-type", "match")
    assert "TOPIC" not in (listed := acls("--list"))
    assert "team/a" in listed
