"""A broker stands for controller, and after it was deposed it lets others stand first."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.coordination import candidacy as module
from millstream_broker.coordination import tree
from millstream_broker.coordination.candidacy import Candidacy
from millstream_broker.coordination.configs import Configs
from millstream_broker.coordination.controllership import ControllerStore
from millstream_broker.coordination.fencing import Fencing
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_broker.coordination.writes import stand_for_election


@pytest.mark.parametrize(
    ("pause_s", "offices"), [(600.0, 1), (0.0, 2)], ids=["during the pause", "after the pause"]
)
async def test_a_deposed_controller_lets_others_stand_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float, offices: int
) -> None:
    """Otherwise a broker that was taken for ended may win again, although nobody reaches it."""
    monkeypatch.setattr(module, "STAND_DOWN_S", pause_s)
    nodes = FileStore(tmp_path / FILE_NAME)
    nodes.start()
    elected: list[ControllerStore] = []
    depositions: list[int] = []
    candidacy = Candidacy(
        nodes,
        Configs(nodes, lambda entities: None),
        Fencing(nodes),
        lambda: None,
        elected.append,
        lambda: depositions.append(1),
    )
    assert await candidacy.follow(1, lambda: True) is None
    assert await candidacy.follow(1, lambda: True) == 1
    await nodes.delete(tree.CONTROLLER)  # by a broker that does not reach this one
    assert await candidacy.follow(1, lambda: True) is None
    assert (len(elected), len(depositions)) == (offices, 1)
    is_free = await stand_for_election(nodes, 2) is not None
    assert is_free == (offices == 1)
    await nodes.close(5.0)
