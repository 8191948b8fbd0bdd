"""`millstream mirror wait` without a cluster: what it waits for, and what it takes as done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from millstream.cli import cli
from millstream.commands import mirror as command
from millstream.errors import MillstreamError, UnknownGroup, Unreachable
from millstream.mirrors import Mirror, MirroredTopic

pytestmark = pytest.mark.process

Looked = list[Mirror] | MillstreamError
HINT = "`millstream mirror status copy` shows whether its workers run"
ORDERS = MirroredTopic("orders", 1, 0, "", ())
BEHIND = MirroredTopic("orders", 1, 7, "", ())
PROMOTED = MirroredTopic("orders", 1, 5, "", (), promoted=True)
GONE = MirroredTopic("payments", 1, None, "", (), gone=True)


def a_mirror(*topics: MirroredTopic, source: str = "west") -> Mirror:
    lag = sum(topic.lag or 0 for topic in topics if topic.mirrored)
    return Mirror("copy", source, f"millstream-mirror.copy.{source}", "Stable", 1, "id", lag, topics)


def wait(monkeypatch: pytest.MonkeyPatch, looks: list[Looked], timeout: str = "60") -> Result:
    """Its result when it sees these one after the other, and the last one until time is over."""
    left: Iterator[Looked] = iter(looks)

    def look(*_: object) -> list[Mirror]:
        found = next(left, looks[-1])
        if isinstance(found, MillstreamError):
            raise found
        return found

    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(command, "mirror_status", look)
    monkeypatch.setattr(command, "time", clock)
    sources = [word for name in ("west", "north") for word in ("--source", f"{name}=localhost:1")]
    words = ["mirror", "wait", "copy", *sources, "--timeout", timeout, "-o", "json"]
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ([PROMOTED], "every topic of west is promoted: nothing is mirrored"),
        ([GONE], "every topic of west is deleted in the source: nothing is mirrored"),
        ([PROMOTED, GONE], "every topic of west is deleted in the source or promoted: nothing is mirrored"),
        ([], "no topic of west has begun"),
        ([GONE, BEHIND], "lag behind west: orders 7"),
    ],
)
def test_a_source_of_which_nothing_is_mirrored_is_not_copied(
    monkeypatch: pytest.MonkeyPatch, topics: list[MirroredTopic], reason: str
) -> None:
    done = wait(monkeypatch, [[a_mirror(ORDERS, source="north"), a_mirror(*topics)]], timeout="0")
    assert done.exit_code == 1
    assert done.stderr == f"Error: copy: not copied within 0 s: {reason}: {HINT}\n"
    done = wait(monkeypatch, [[a_mirror(*topics)], [a_mirror(ORDERS, GONE)]])
    assert done.exit_code == 0
    assert done.stderr == f"copy: waiting: {reason}\n"
    (one,) = json.loads(done.stdout)["mirrors"]
    assert [topic["gone"] for topic in one["topics"]] == [False, True]


def test_only_mirrored_topics_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "mirror_status", lambda *_: [a_mirror(ORDERS, PROMOTED, GONE)])
    done = CliRunner().invoke(cli, ["mirror", "wait", "copy", "--source", "west=localhost:1"])
    assert done.stdout == "copy: lag 0 in 1 topic\n"


def test_a_cluster_that_stops_responding_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Unreachable("no broker at west:9092 (connection refused)", "start one")
    done = wait(monkeypatch, [[a_mirror(BEHIND)], away, [a_mirror(ORDERS)]])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "copy: waiting: lag behind west: orders 7",
        "copy: waiting: no broker at west:9092 (connection refused)",
    ]


def test_it_ends_with_the_reason_for_which_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Unreachable("no broker at west:9092 (connection refused)", "start one")
    done = wait(monkeypatch, [[a_mirror(BEHIND)], away], timeout="1")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"Error: copy: not copied within 1 s: {away.problem}: {HINT}"


@pytest.mark.parametrize(
    "error", [Unreachable("no broker at west:9092", "start one"), UnknownGroup("no mirror")]
)
def test_a_first_look_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch, error: MillstreamError) -> None:
    done = wait(monkeypatch, [error, [a_mirror(ORDERS)]])
    assert (done.exit_code, done.stderr) == (1, f"Error: {error}\n")


def test_an_error_that_stays_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UnknownGroup('no mirror "copy" has progress in this cluster')
    done = wait(monkeypatch, [[a_mirror(BEHIND)], error, [a_mirror(ORDERS)]])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Error: {error}")


@pytest.mark.parametrize("words", [["mirror", "wait", "copy", "--timeout"], ["top", "--interval"]])
@pytest.mark.parametrize("seconds", ["nan", "-NaN", "inf", "-1", "soon"])
def test_what_is_no_time_is_refused(words: list[str], seconds: str) -> None:
    """NaN would be a time that never comes."""
    done = CliRunner().invoke(cli, [*words, seconds, "--bootstrap", "localhost:1"])
    assert done.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in done.stderr
