"""`millstream stray`: lists the strays of real brokers, and removes those that are named, and nothing else."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream.administering.strays import Stray, remove_strays
from millstream.commands.stray import _age
from millstream.connection import Cluster
from millstream.errors import Declined, Failed
from millstream.words import size_of
from millstream_broker.log import folders
from millstream_broker.log.strays import NOTE
from millstream_harness.command import in_this_process
from millstream_harness.in_process_broker import InProcessBroker
from millstream_kafka.client import Connection
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol import remove_strays as remove_strays_messages
from millstream_kafka.protocol.api import Api

OLD, OTHER = uuid.UUID(int=5 << 100), uuid.UUID(int=6 << 100)
SINCE_MS = 1_700_000_000_000


def millstream(*arguments: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process."""
    return in_this_process(*arguments, "--bootstrap", bootstrap)


def put(data: Path, topic: str, partition: int, topic_id: uuid.UUID | None, size: int = 3000) -> Path:
    """A stray, as a broker would have left it."""
    path = data / folders.name_when_stray((topic, partition), topic_id)
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(bytes(size))
    (path / NOTE).write_text(json.dumps({"version": 1, "since_ms": SINCE_MS}))
    if topic_id is not None:
        folders.write_topic_id(path, topic_id)
    return path


@pytest.fixture
def broker(tmp_path: Path) -> InProcessBroker:
    with InProcessBroker(tmp_path).start() as broker:
        assert millstream("topic", "create", "used", bootstrap=broker.bootstrap).returncode == 0
        broker.stop()
        yield broker  # type: ignore[misc]


def listed(broker: InProcessBroker) -> list[dict[str, object]]:
    ended = millstream("stray", "list", "-o", "json", bootstrap=broker.bootstrap)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


def test_strays_are_listed_and_removed_by_topic_id(broker: InProcessBroker) -> None:
    paths = [
        put(broker.data, "old", 0, OLD),
        put(broker.data, "old", 1, OLD),
        put(broker.data, "a", 3, OTHER),
    ]
    nameless = put(broker.data, "nameless", 0, None)
    broker.start()
    found = listed(broker)
    assert [(one["topic"], one["partition"], one["topicId"]) for one in found] == [
        ("a", 3, uuid_text(OTHER)),
        ("nameless", 0, ""),
        ("old", 0, uuid_text(OLD)),
        ("old", 1, uuid_text(OLD)),
    ]
    assert all(one["sinceMs"] == SINCE_MS and one["broker"] == 1 for one in found)
    assert all(int(str(one["size"])) >= 3000 for one in found)
    table = millstream("stray", "list", bootstrap=broker.bootstrap).stdout
    assert uuid_text(OTHER) in table
    assert nameless.name in table
    assert "3.0 KiB" in table

    ended = millstream("stray", "remove", uuid_text(OLD), bootstrap=broker.bootstrap)
    assert (ended.returncode, [*map(Path.exists, paths)]) == (2, [True] * 3), (
        "without a terminal it needs --yes"
    )
    assert "add --yes, or --dry-run" in ended.stderr
    ended = millstream("stray", "remove", uuid_text(OLD), "--dry-run", bootstrap=broker.bootstrap)
    assert (ended.returncode, [*map(Path.exists, paths)]) == (0, [True] * 3)
    for wrong in (uuid_text(uuid.uuid4()), "used", "used-0", "old", "old-0"):
        ended = millstream("stray", "remove", wrong, "--yes", bootstrap=broker.bootstrap)
        assert ended.returncode == 1
        assert f'there is no stray of "{wrong}"' in ended.stderr
    ended = millstream("stray", "remove", uuid_text(OLD), "-p", "1", "--yes", bootstrap=broker.bootstrap)
    assert (ended.returncode, [*map(Path.exists, paths)]) == (0, [True, False, True])
    assert ended.stdout.endswith("removed 1 stray\n")
    ended = millstream("stray", "remove", nameless.name, "--yes", "-o", "json", bootstrap=broker.bootstrap)
    assert [one["folder"] for one in json.loads(ended.stdout)["strays"]] == [nameless.name]
    assert not nameless.exists()
    ended = millstream("stray", "remove", "--all", "--yes", bootstrap=broker.bootstrap)
    assert (ended.returncode, [*map(Path.exists, paths)]) == (0, [False] * 3)
    assert listed(broker) == []
    assert (broker.data / "used-0").is_dir()


def test_a_question_names_what_is_removed(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(broker.data, "old", 0, OLD)
    broker.start()
    asked: list[str] = []

    def confirm(command: str, question: str, *, yes: bool) -> None:
        asked.append(question)
        raise Declined("nothing was changed")

    monkeypatch.setattr("millstream.commands.stray.confirm", confirm)
    ended = millstream("stray", "remove", uuid_text(OLD), bootstrap=broker.bootstrap)
    assert ended.returncode == 1
    assert uuid_text(OLD) in ended.stdout
    assert asked == ["Remove 1 stray with 3.0 KiB? Their records cannot be restored."]
    assert path.exists()


def test_a_stray_of_an_earlier_listing_that_is_none_any_more_is_refused(broker: InProcessBroker) -> None:
    path = put(broker.data, "old", 0, OLD)
    broker.start()
    (found,) = listed(broker)
    stray = Stray(
        1, "old", 0, uuid_text(OLD), 3000, int(str(found["sinceMs"])) - 1, str(broker.data), path.name
    )
    outcomes = remove_strays(Cluster(broker.bootstrap), [stray])
    assert outcomes == {stray: "it is no stray of this broker any more: list the strays again"}
    assert path.exists()


def test_a_broker_that_does_not_know_strays_is_named(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka does not serve the request."""
    broker.start()
    version = Connection.version

    def version_without_strays(connection: Connection, api: Api[Any, Any]) -> int:
        connection.versions.pop(remove_strays_messages.API.key, None)
        return version(connection, api)

    monkeypatch.setattr(Connection, "version", version_without_strays)
    stray = Stray(1, "old", 0, "", 0, 0, "/", "x")
    with pytest.raises(
        Failed, match="broker 1 cannot list or remove strays: it is Apache Kafka, or an older"
    ):
        remove_strays(Cluster(broker.bootstrap), [stray])
    with pytest.raises(Failed, match="broker 7 is not running"):
        remove_strays(Cluster(broker.bootstrap), [Stray(7, "old", 0, "", 0, 0, "/", "x")])


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (3 * 86400 + 5, "3d")]
)
def test_an_age_is_short(seconds: int, shown: str) -> None:
    assert _age(seconds * 1000) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (1 << 51, "2048.0 TiB")],
)
def test_a_size_is_short(size: int, shown: str) -> None:
    assert size_of(size) == shown
