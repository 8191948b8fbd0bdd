"""Settings of an identity mirror's topics, compared as brokers parse them."""

from __future__ import annotations

import pytest

from millstream_mirror.identity.replicas import Configuration, differences

TYPES = {
    "cleanup.policy": 7,
    "min.cleanable.dirty.ratio": 6,
    "retention.ms": 5,
    "unclean.leader.election.enable": 1,
    "compression.type": 2,
}


@pytest.mark.parametrize(
    ("key", "source", "target", "is_same"),
    [
        ("min.cleanable.dirty.ratio", "1.0E-4", "0.0001", True),
        ("min.cleanable.dirty.ratio", "0.4", "0.5", False),
        ("cleanup.policy", "compact, delete", "compact,delete", True),
        ("cleanup.policy", "delete,delete", "delete", True),
        ("unclean.leader.election.enable", "True", "true", True),
        ("retention.ms", "1_000", "1000", False),
        ("compression.type", "zstd", "lz4", False),
    ],
)
def test_equal_settings_in_different_spelling_match(
    key: str, source: str, target: str, is_same: bool
) -> None:
    found = differences(
        Configuration({key: source}, TYPES), Configuration({key: target}, TYPES), lambda _: True
    )
    assert found == ({} if is_same else {key: source})


def test_missing_setting_is_copied_and_unknown_ignored() -> None:
    source = Configuration({"retention.ms": "1", "kafka.only": "x"}, {**TYPES, "kafka.only": 2})
    target = Configuration({"compression.type": "lz4"}, TYPES)
    assert differences(source, target, lambda _: True) == {"retention.ms": "1", "compression.type": None}
