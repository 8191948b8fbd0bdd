"""Controller epochs tell a tree that was restored from an older copy: each belongs to one broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.coordination import NO_LEADER, tree
from millstream_broker.coordination.fencing import Elected, Fencing
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore


@pytest.mark.parametrize(
    ("known", "stored", "why"),
    [
        (Elected(2, 1), Elected(2, 3), "controller epoch 2 of broker 3, it was broker 1's"),
        (Elected(3, 1), Elected(2, 3), "controller epoch 2, it had 3"),
        (Elected(3, 1), Elected(0, NO_LEADER), "controller epoch 0, it had 3"),
        (Elected(2, 3), Elected(2, 3), ""),
        (Elected(2, 1), Elected(2, NO_LEADER), ""),
        (Elected(2, 1), Elected(3, 3), ""),
        (Elected(0, NO_LEADER), Elected(2, 3), ""),
    ],
)
async def test_what_a_tree_has_forgotten(tmp_path: Path, known: Elected, stored: Elected, why: str) -> None:
    nodes = FileStore(tmp_path / FILE_NAME)
    nodes.start()
    if stored.controller_epoch:
        await nodes.create(tree.CONTROLLER_EPOCH, str(stored.controller_epoch).encode())
    if stored.broker_id != NO_LEADER:
        await nodes.create(tree.CONTROLLER, tree.controller_json(stored.broker_id), ephemeral=True)
    fencing = Fencing(nodes)
    fencing.elected(known)
    found = await fencing.contradicted(nodes)
    assert why in found
    assert bool(found) == bool(why)
    await nodes.close(5.0)
