"""The settings of topics and of their copies.

identity    a copy has its source's settings, as they are now, but for those that concern the target's brokers
aggregate   a copy keeps the settings with which it was created
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.mirror import new_admin
from millstream_kafka.mirror_source import KEY

OF_THE_TARGET = frozenset({"min.insync.replicas", "unclean.leader.election.enable", KEY})
"""Neither copied nor compared."""
Settings = Mapping[str, str]


def settings_of(cluster: ClusterProcesses, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Those that the topics have of their own."""
    client = new_admin(cluster)
    asked: Any = client.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics])
    return {
        resource.name: {
            entry.name: entry.value
            for entry in answer.result(20).values()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.name not in OF_THE_TARGET
        }
        for resource, answer in asked.items()
    }


def unlike(wanted: Settings, found: Settings) -> str:
    """Which settings are others than wanted."""
    keys = sorted(wanted.keys() | found.keys())
    wrong = [f"{key}={found.get(key)}" for key in keys if wanted.get(key) != found.get(key)]
    expected = [f"{key}={wanted.get(key)}" for key in keys if wanted.get(key) != found.get(key)]
    return f"{', '.join(wrong)}, expected {', '.join(expected)}" if wrong else ""
