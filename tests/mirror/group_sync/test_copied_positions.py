"""The position of a group in the target, by that in the source."""

from __future__ import annotations

import pytest

from millstream_mirror.group_sync.groups import Copied
from millstream_mirror.kafka.group_offsets import Position


@pytest.mark.parametrize(
    ("keeps_epochs", "target_offset", "epoch"),
    [(True, 7, 3), (True, 6, -1), (False, 7, -1)],
    ids=["replica", "replica that lags", "copy"],
)
def test_only_a_replica_has_the_leader_epochs_of_its_source(
    keeps_epochs: bool, target_offset: int, epoch: int
) -> None:
    """Consumers in the target detect a truncated log by them (KIP-320)."""
    copied = Copied((1, 0), Position(7, "what was noted", 3), target_offset, at=0.0)
    assert copied.in_target(keeps_epochs=keeps_epochs) == Position(target_offset, "what was noted", epoch)
