"""`millstream` as users run it: a process, with a real broker."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.connection import ATTEMPTS_S
from millstream_harness.broker import fixed_port
from millstream_harness.command import COMMAND, millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def lines(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_topics_are_listed_and_described(run: Run, topic: str) -> None:
    run("produce", topic, "--partition", "1", stdin=b"one\ntwo\n")
    listed = json.loads(run("--output", "json", "topic", "list").stdout)
    assert {"name": topic, "partitions": 3, "replicationFactor": 1} in listed
    described = json.loads(run("topic", "describe", topic, "-o", "json").stdout)
    assert described["name"] == topic
    assert re.fullmatch(r"[\w-]{22}", described["topicId"])
    assert described["config"] == {"retention.ms": "3600000"}
    assert [(one["partition"], one["earliest"], one["latest"]) for one in described["partitions"]] == [
        (0, 0, 0), (1, 0, 2), (2, 0, 0),
    ]  # fmt: skip
    table = run("topic", "describe", topic).stdout.decode()
    assert f"topic {topic}, id {described['topicId']}" in table
    assert "retention.ms=3600000" in table
    assert "PARTITION" in table


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(run: Run, topic: str, codec: str) -> None:
    said = run("produce", topic, "--codec", codec, "--key-separator", r"\t", stdin=b"k\tone\nk\t\nk\tt\tt\n")
    assert said.stdout == f"3 records to {topic}\n".encode()
    assert run("consume", topic).stdout == b"one\n\nt\tt\n"
    assert run("consume", topic, "--key-separator", "=>").stdout == b"k=>one\nk=>\nk=>t\tt\n"


def test_a_file_and_what_comes_out_as_json(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes("grüße\n".encode() + b"\xff\xfe")
    said = run("produce", topic, "--file", str(tmp_path / "lines"), "--partition", "2", "-o", "json").stdout
    assert json.loads(said) == {
        "topic": topic,
        "records": 2,
        "partitions": [
            {"partition": 0, "records": 0},
            {"partition": 1, "records": 0},
            {"partition": 2, "records": 2},
        ],
    }
    first, second = lines(run("consume", topic, "-o", "json").stdout)
    assert (first["topic"], first["partition"], first["offset"]) == (topic, 2, 0)
    assert (first["key"], first["value"]) == (None, "grüße")
    assert abs(first["timestamp"] / 1000 - time.time()) < 600
    assert second["valueBase64"] == "//4="


def test_where_to_start_and_how_many(run: Run, topic: str) -> None:
    run("produce", topic, "--partition", "0", stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert run("consume", topic, "--from", "7").stdout == b"7\n8\n9\n"
    assert run("consume", topic, "--from", "10").stdout == b""  # the offset of the next record
    beyond = run("consume", topic, "--from", "11", status=2)
    assert (beyond.stdout, beyond.stderr.decode()) == (
        b"",
        f"millstream: --from: 11 is beyond the end of {topic}, which has offsets 0 to 9: millstream topic describe "
        f"{topic} shows the offsets of its partitions; --follow waits for more records\n",
    )
    assert run("consume", topic, "--from", "latest").stdout == b""
    assert run("consume", topic, "--max", "2").stdout == b"0\n1\n"


def test_a_group_goes_on_where_it_was(run: Run, topic: str) -> None:
    group = unique("group")
    run("produce", topic, "--partition", "0", stdin=b"0\n1\n2\n3\n")
    assert run("consume", topic, "--group", group, "--max", "3").stdout == b"0\n1\n2\n"
    described = json.loads(run("group", "describe", group, "-o", "json").stdout)
    assert described["state"] == "Empty"
    assert described["lag"] == 1
    assert {(one["partition"], one["committed"], one["lag"]) for one in described["partitions"]} >= {
        (0, 3, 1)
    }
    assert run("consume", topic, "--group", group).stdout == b"3\n"
    assert run("consume", topic, "--group", group).stdout == b""
    assert {"group": group, "state": "Empty"} in json.loads(run("group", "list", "-o", "json").stdout)
    assert f"group {group}, Empty, 0 members, lag 0" in run("group", "describe", group).stdout.decode()


@pytest.fixture
def follower(shared_broker: InProcessBroker, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `consume --follow` in the group with the topic's name."""
    command = [COMMAND, "-b", shared_broker.bootstrap, "consume", topic, "--group", topic, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_following_shows_records_as_they_come_and_leaves_when_stopped(
    run: Run, topic: str, follower: subprocess.Popen[bytes]
) -> None:
    assert follower.stdout is not None
    run("produce", topic, "--partition", "0", stdin=b"first\n")
    assert follower.stdout.readline() == b"first\n"
    described = json.loads(run("group", "describe", topic, "-o", "json").stdout)
    assert described["state"] == "Stable"
    (member,) = described["members"]
    assert sorted(member["partitions"]) == [f"{topic}-{number}" for number in range(3)]
    assert member["host"] == "127.0.0.1"
    run("produce", topic, "--partition", "0", stdin=b"second\n")
    assert follower.stdout.readline() == b"second\n"
    follower.send_signal(signal.SIGTERM)
    assert follower.wait(60) == 130
    assert follower.stderr is not None
    assert follower.stderr.read().decode() == f"millstream: interrupted: 2 records read from {topic}\n"
    described = json.loads(run("group", "describe", topic, "-o", "json").stdout)
    assert described["members"] == []
    assert described["partitions"][0]["committed"] >= 1


@pytest.mark.parametrize(
    ("status", "arguments", "said"),
    [
        (
            1,
            ("topic", "describe", "no-such"),
            'there is no topic "no-such": create it (millstream topic create NAME), or see millstream topic list',
        ),
        (1, ("topic", "delete", "no-such"), 'there is no topic "no-such": '),
        (
            1,
            ("produce", "no-such"),
            'there is no topic "no-such": create it (millstream topic create NAME), or see millstream topic list',
        ),
        (
            1,
            ("consume", "no-such"),
            'there is no topic "no-such": create it (millstream topic create NAME), or see millstream topic list',
        ),
        (
            1,
            ("group", "describe", "no-such"),
            'there is no group "no-such": millstream group list shows the groups',
        ),
        (1, ("group", "delete", "no-such"), 'there is no group "no-such": '),
        (1, ("group", "reset", "no-such", "--to-earliest"), 'there is no group "no-such": '),
        (2, ("group", "reset", "g"), "group reset: exactly one target is required: --to-earliest, "),
        (2, ("group", "reset", "g", "--to-latest", "--shift-by", "1"), "group reset: exactly one target"),
        (
            2,
            ("group", "reset", "g", "--to-datetime", "noon"),
            '--to-datetime: "noon" is not allowed: write ISO 8601, such as ',
        ),
        (
            2,
            ("consume", "{topic}", "--from", "soon"),
            '--from: "soon" is not allowed: write earliest, latest or an offset',
        ),
        (
            2,
            ("consume", "{topic}", "--from", "3", "--group", "g"),
            "--from: 3 is not allowed with a group: write earliest or",
        ),
        (2, ("produce", "{topic}", "--partition", "3"), "--partition: 3 is not allowed: {topic} has 0 to 2"),
        (
            2,
            ("produce", "{topic}", "--key-separator", ""),
            '--key-separator: "" is not allowed: write at least one character',
        ),
        (
            2,
            ("produce", "{topic}", "--key-separator", "="),
            "line 2 has no key separator '=': the 1 lines before it are in the topic",
        ),
        (
            2,
            ("--bootstrap", "nowhere", "topic", "list"),
            '--bootstrap: "nowhere" is not allowed: write HOST:PORT',
        ),
        (2, ("topic", "create", "x", "--config", "a"), '--config: "a" is not allowed: write KEY=VALUE'),
        (2, ("topic", "create", "x", "-c", "a=1", "-c", "a=2"), "--config: a is given twice: "),
        (1, ("topic", "create", "{topic}"), "topic {topic} cannot be created: "),
        (1, ("topic", "create", "x", "-r", "9"), "topic x cannot be created: "),
        (1, ("topic", "create", "x", "-c", "no.such=1"), "topic x cannot be created: "),
        (2, ("topic", "alter", "{topic}"), "topic alter: nothing to change: name --partitions, "),
        (2, ("topic", "alter", "{topic}", "-p", "3"), "--partitions: 3 is not allowed: {topic} has 3, and "),
        (
            1,
            ("topic", "alter", "{topic}", "-c", "retention.ms=soon"),
            "the configuration of topic {topic} cannot be changed: ",
        ),
        (
            2,
            ("config", "get", "flights"),
            'resource: "flights" is not allowed: write topic/NAME or broker/ID',
        ),
        (2, ("config", "get", "broker/77"), "there is no broker 77: the brokers that are up: "),
        (2, ("config", "get", "topic/{topic}", "no.such"), "topic {topic} has no key no.such: "),
        (
            2,
            ("topic", "delete", "{topic}"),
            "topic delete: cannot ask for confirmation without a terminal: add --yes, or --dry-run",
        ),
        (2, ("topic", "frobnicate"), "No such command 'frobnicate': see `millstream topic --help`"),
        (2, ("topic", "list", "--frobnicate"), "No such option '--frobnicate'"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_next_step(
    run: Run, topic: str, status: int, arguments: tuple[str, ...], said: str
) -> None:
    ended = run(*(one.replace("{topic}", topic) for one in arguments), stdin=b"a=b\nc\n", status=status)
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"millstream: {said.replace('{topic}', topic)}")
    assert "Traceback" not in line
    assert ended.stdout == b"" or arguments[:2] == ("topic", "delete")


def test_an_unknown_topic_is_not_created_by_asking(run: Run) -> None:
    name = unique("never")
    for command in ("describe", "consume", "produce"):
        run(*(("topic", command) if command == "describe" else (command,)), name, status=1)
    assert name not in run("topic", "list").stdout.decode()


def test_a_cluster_that_is_not_there_is_said_within_seconds() -> None:
    assert sum(ATTEMPTS_S) < 10, "it waits no longer for an answer"
    with socket.socket() as held:  # bound, not listening: no other process gets the port meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for arguments in (("topic", "list"), ("consume", "t"), ("produce", "t"), ("group", "list")):
            ended = millstream(*arguments, bootstrap=address)
            assert ended.returncode == 1
            assert ended.stderr.decode() == (
                f"millstream: no broker at {address} (connection refused): "
                "start one (millstream local up -f DIR), or name another in --bootstrap\n"
            )


def test_something_that_is_no_broker_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail.example.com ESMTP\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ended = millstream("topic", "list", bootstrap=address)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"millstream: {address} does not answer as a Kafka broker (")


def test_brokers_that_advertise_what_cannot_be_reached_are_said(
    start_broker: Callable[..., InProcessBroker],
) -> None:
    port = fixed_port()
    advertised = "PLAINTEXT://no-such-host.invalid:9092"
    start_broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}", "advertised.listeners": advertised})
    ended = millstream("topic", "list", bootstrap=f"127.0.0.1:{port}")
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert "the addresses that its brokers advertise do not: no-such-host.invalid:9092 (" in line
    assert "advertised.listeners" in line


def test_commands_of_other_packages_are_there() -> None:
    assert "up" in millstream("local", "--help", bootstrap=None).stdout.decode()
    ended = millstream("no-such-command", bootstrap=None)
    assert ended.returncode == 2
    assert "No such command" in ended.stderr.decode()
    assert "Did you mean 'local'?" in millstream("locl", bootstrap=None).stderr.decode()
