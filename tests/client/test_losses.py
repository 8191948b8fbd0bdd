"""Changes of a topic that delete records are told from those that do not."""

from __future__ import annotations

import pytest

from millstream.configs import Setting
from millstream.losses import default_losses, losses, owner

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


@pytest.mark.parametrize(
    ("own", "brokers", "words"),
    [
        ({"retention_ms": "1000"}, [{"log_retention_hours": "168"}], ""),
        ({"retention_ms": "-1"}, [{"log_retention_hours": "168"}], "older than 604800000 ms"),
        (
            {"retention_ms": "604800000"},
            [{"log_retention_minutes": "1", "log_retention_hours": "168"}],
            "60000",
        ),
        ({"retention_ms": "70000"}, [{"log_retention_ms": "80000", "log_retention_minutes": "1"}], ""),
        ({"retention_ms": "70000"}, [{"log_retention_hours": "1"}, {"log_retention_minutes": "1"}], "60000"),
        ({"retention_ms": "1000"}, [{}], "may delete records"),
        ({"cleanup_policy": "compact"}, [{"log_cleanup_policy": "delete"}], "old records are deleted"),
        ({"cleanup_policy": "compact,delete"}, [{"log_cleanup_policy": "delete"}], ""),
        ({"retention_bytes": "5"}, [{"log_retention_bytes": "-1"}], ""),
    ],
)
def test_a_reset_deletes_what_the_brokers_defaults_do_not_keep(
    own: dict[str, str], brokers: list[dict[str, str]], words: str
) -> None:
    there = settings(own=True, **own)
    found = losses(there, {}, [there[0].key], [settings(**broker) for broker in brokers])
    assert bool(found) == bool(words)
    assert words in "; ".join(found)


@pytest.mark.parametrize(
    ("now", "change", "reset", "words"),
    [
        ({"log_retention_hours": "168"}, {"log.retention.ms": "1000"}, [], "older than 1000 ms"),
        ({"log_retention_ms": "-1"}, {"log.retention.minutes": "1"}, [], ""),  # the other counts
        ({"log_retention_bytes": "-1"}, {"log.retention.bytes": "5"}, [], "beyond 5 bytes"),
        ({"log_cleanup_policy": "delete"}, {"log.cleanup.policy": "compact"}, [], "all but the last record"),
        ({"log_cleaner_threads": "1"}, {"log.cleaner.threads": "2"}, [], ""),
        ({"log_retention_ms": "-1"}, {}, ["log.retention.ms"], "the default of retention.ms counts again"),
    ],
)
def test_brokers_defaults_that_delete_records(
    now: dict[str, str], change: dict[str, str], reset: list[str], words: str
) -> None:
    found = default_losses(settings(own=True, **now), change, reset)
    assert bool(found) == bool(words)
    assert words in "; ".join(found)


def test_a_topic_of_a_topic_resource_says_so() -> None:
    there = [Setting("millstream.topic.owner", "shop/orders", OWN, True)]
    assert "Topic resource shop/orders" in owner(there)
    assert owner(there, ["millstream.topic.owner"]) == "", "the owner is what changes"


def test_a_mirrors_topic_says_so() -> None:
    assert "copy of CLUSTER/TOPIC" in owner([Setting("millstream.mirror.source", "CLUSTER/TOPIC", OWN, True)])
    assert owner(settings(retention_ms="5")) == ""
