"""What a run finds on disks with several log directories, and the tree that it gives to another cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream_faults.ensemble import foreign
from millstream_faults.replicas import BadLogError, folders, held


def test_strays_and_logs_of_all_directories_are_listed(tmp_path: Path) -> None:
    for folder, identity in (
        ("d1/t-0", "A"),
        ("d2/t-1", "A"),
        ("d2/t-0.B-stray", "B"),
        ("d1/t-2.C-delete", "C"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {identity}\n")
    assert held(tmp_path) == ([["B", 0]], [["A", 0], ["A", 1]])


def test_a_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    for directory in ("d1", "d2"):
        (tmp_path / directory / "t-0").mkdir(parents=True)
        (tmp_path / directory / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: A\n")
    with pytest.raises(BadLogError, match="t-0 is also in d1"):
        list(folders(tmp_path, "t", "A"))


def test_another_clusters_tree_has_the_same_topics_by_other_ids() -> None:
    topic = {"version": 3, "topic_id": "A", "partitions": {"0": [1]}}
    state = b'{"leader":1}'
    nodes = {
        "/cluster": b"",
        "/cluster/id": b'{"version":"1","id":"mine"}',
        "/brokers/topics/t": json.dumps(topic).encode(),
        "/brokers/topics/t/partitions/0/state": state,
    }
    changed = foreign(nodes)
    assert next(iter(changed)) == "/cluster/id", "nobody takes an unfinished tree for his own"
    assert changed.keys() == nodes.keys()
    assert b"mine" not in changed["/cluster/id"]
    found = json.loads(changed["/brokers/topics/t"])
    assert found["partitions"] == topic["partitions"]
    assert found["topic_id"] != "A"
    assert changed["/brokers/topics/t/partitions/0/state"] == state
