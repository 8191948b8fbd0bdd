"""Changes of a topic that delete records are told from those that do not."""

from __future__ import annotations

import pytest

from millstream.configs import Setting
from millstream.losses import losses, owner

OWN = "DYNAMIC_TOPIC_CONFIG"


def settings(own: bool = False, **values: str) -> list[Setting]:
    return [Setting(key.replace("_", "."), value, OWN, own) for key, value in values.items()]


@pytest.mark.parametrize(
    ("key", "before", "after", "words"),
    [
        ("retention.ms", "604800000", "1000", "older than 1000 ms"),
        ("retention.ms", "-1", "1000", "older than 1000 ms"),
        ("retention.ms", "1000", "604800000", ""),
        ("retention.ms", "1000", "-1", ""),
        ("retention.ms", "1000", "soon", ""),
        ("retention.bytes", "-1", "1", "beyond 1 bytes"),
        ("retention.bytes", "5", "5", ""),
        ("cleanup.policy", "delete", "compact", "all but the last record of each key"),
        ("cleanup.policy", "delete", "delete, compact", "all but the last record of each key"),
        ("cleanup.policy", "compact", "compact,delete", "old records are deleted"),
        ("cleanup.policy", "compact,delete", "delete", ""),
        ("max.message.bytes", "5", "4", ""),
    ],
)
def test_settings_that_delete_records(key: str, before: str, after: str, words: str) -> None:
    found = losses([Setting(key, before, "DEFAULT_CONFIG", False)], {key: after})
    assert bool(found) == bool(words)
    assert words in "; ".join(found)


def test_a_reset_may_delete_records() -> None:
    assert losses(settings(own=True, retention_ms="-1"), {}, ["retention.ms"]) != []
    assert losses(settings(retention_ms="-1"), {}, ["retention.ms"]) == [], "it is not set on the topic"
    assert losses(settings(own=True, segment_ms="5"), {}, ["segment.ms"]) == []


def test_a_mirrors_topic_says_so() -> None:
    assert "copy of CLUSTER/TOPIC" in owner([Setting("millstream.mirror.source", "CLUSTER/TOPIC", OWN, True)])
    assert owner(settings(retention_ms="5")) == ""
