"""A task's progress in the metadata of committed offsets, which any client of the cluster may write."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from millstream_mirror.kafka.progress import (
    MAX_ID,
    MAX_ORIGINS,
    MOST_BYTES,
    MOST_GROUPS,
    Gap,
    LastBatch,
    Progress,
)

WHOLE = Progress(
    5,
    (1 << 63) - 1,
    32767,
    (1 << 31) - 1,
    17,
    "topic",
    "cluster",
    99,
    Gap(1, 2, 3),
    ("a", "b"),
    first=4,
    source_end=120,
    observed_ms=88,
    is_deselected=True,
    groups=(("abcdefgh", 7), ("ijklmnop", 0)),
)
PLAIN = Progress(0, -1, 0, 0, 0, "topic", "", 0)


@pytest.mark.parametrize("progress", [WHOLE, PLAIN])
def test_progress_survives_encoding(progress: Progress) -> None:
    assert Progress.read(progress.offset, progress.metadata()) == progress


def test_progress_of_older_releases_is_read() -> None:
    stored = (
        '{"last":[40,9,3],"target":"t","gap":[1,2,3],"origins":["a","b"],"left":true,"source":[120,88],"new":true,'
        '"v":1,"producer":[7,2,5],"first":-1,"end":17,"topicId":"topic","cluster":"c","at":99,"groups":{"abcdefgh":7}}'
    )
    assert Progress.read(45, stored) == Progress(
        45,
        7,
        2,
        5,
        17,
        "topic",
        "c",
        99,
        Gap(1, 2, 3),
        ("a", "b"),
        source_end=120,
        observed_ms=88,
        is_deselected=True,
        last=LastBatch(40, 9, 3),
        target_id="t",
        is_new=True,
        groups=(("abcdefgh", 7),),
    )
    oldest = '{"v":1,"producer":[7,2,5],"end":17,"topicId":"topic","cluster":"","at":99}'
    assert Progress.read(45, oldest) == Progress(45, 7, 2, 5, 17, "topic", "", 99)


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(WHOLE.metadata()), **fields})


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "x",
        "null",
        "[]",
        "7",
        '"text"',
        "{}",
        '{"v":1}',
        '{"v":1,"producer":[1e999,0,0]}',
        '{"v":NaN}',
        "[" * 4000,
        '{"v":' * 700,
        '{"v":1,"producer":' + "[" * 4000,
        '{"v":1,"producer":' + "9" * 4000 + "}",
        changed(v=2),
        changed(groups=[]),
        changed(groups={"a": "7"}),
        changed(groups={str(number): 7 for number in range(MOST_GROUPS + 1)}),
        changed(v=[["x"]] * 300),
        changed(producer=[1, 2]),
        changed(producer={"a": 1, "b": 2, "c": 3}),
        changed(producer=[1 << 63, 0, 0]),
        changed(producer=[1, 1 << 15, 0]),
        changed(producer=[1, 0, 1 << 31]),
        changed(producer=[1, 0, True]),
        changed(producer=[1, 0, 1.5]),
        changed(end=float("inf")),
        changed(end="1"),
        changed(at=1 << 63),
        changed(gap=[1, 2]),
        changed(gap=[1, 2, 3, 4]),
        changed(gap=5),
        changed(first=None),
        changed(source=[1]),
        changed(source=["1", 2]),
        changed(source=7),
        changed(topicId=5),
        changed(cluster="\ud800"),
        changed(cluster="c" * 256),
        changed(cluster="two\nlines"),
        changed(origins="abc"),
        changed(origins=[["a"]]),
        changed(origins=["a"] * (MAX_ORIGINS + 1)),
    ],
)
def test_foreign_progress_is_refused_in_one_line(metadata: str) -> None:
    with pytest.raises(ValueError, match=r"^not a mirror's progress: ") as refusal:
        Progress.read(5, metadata)
    assert len(str(refusal.value)) < 1000
    assert str(refusal.value).isprintable()


def test_latest_group_offsets_are_kept_within_limit() -> None:
    progress = PLAIN
    for number in range(2 * MOST_GROUPS):
        progress = progress.with_committed(f"group-{number}", 1 << 62)
    progress = progress.with_committed(f"group-{MOST_GROUPS}", 5)
    assert len(progress.groups) == MOST_GROUPS
    assert progress.committed_for(f"group-{MOST_GROUPS}") == 5
    assert progress.committed_for(f"group-{MOST_GROUPS - 1}") is None
    assert Progress.read(0, progress.metadata()) == progress
    crowded = replace(progress, origins=tuple(f"{number:040}" for number in range(MAX_ORIGINS)))
    assert len(crowded.metadata()) <= MOST_BYTES
    read = Progress.read(0, crowded.metadata())
    assert (read.origins, read.committed_for(f"group-{MOST_GROUPS}")) == (crowded.origins, 5)
    foreign = replace(progress, cluster_id="𝄞" * MAX_ID, origins=("𝄞" * MAX_ID,))
    assert len(foreign.metadata().encode()) <= MOST_BYTES
