"""The table of requests with rights is complete: every API that needs any is sent to a broker and to Kafka."""

from __future__ import annotations

from millstream_broker import api
from millstream_broker.network.handlers import REGISTERED
from millstream_harness.access_rows import ROWS
from millstream_kafka.acl import AclOperation, ResourceType

OURS = {"DescribeStrays", "RemoveStrays", "MirrorAppend", "MirrorTruncate"}
"""Requests that Kafka does not have."""
REFUSALS_ONLY = {
    *(
        (name, AclOperation.ALTER_CONFIGS, ResourceType.GROUP)
        for name in ("AlterConfigs", "IncrementalAlterConfigs")
    ),
    ("DescribeConfigs", AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP),
    ("AlterConfigs", AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ("ConsumerGroupHeartbeat", AclOperation.READ, ResourceType.GROUP),
    ("CreateTopics", AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ("Metadata", AclOperation.CREATE, ResourceType.CLUSTER),
    ("InitProducerId", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
    ("Produce", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
}
"""Rights without which a request is sent, but not with them: the responses differ for other reasons."""


def test_every_right_has_a_row() -> None:
    api.load()
    needed = {
        (registration.api.name, right.operation, right.resource_type)
        for registration in REGISTERED.values()
        for right in registration.rights
        if registration.api.name not in OURS
    }
    sent = {
        (row.api.name, operation, resource_type) for row in ROWS for operation, resource_type, _ in row.needs
    }
    missing = sorted(
        f"{name} {operation.title} {of.title}" for name, operation, of in needed - sent - REFUSALS_ONLY
    )
    assert missing == []
