"""`millstream` as its users run it: a process, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.scenario import unique

COMMAND = str(Path(sys.executable).parent / "millstream")
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def millstream(
    *arguments: str, stdin: bytes = b"", bootstrap: str | None
) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_BOOTSTRAP"}
    if bootstrap is not None:
        environment["MILLSTREAM_BOOTSTRAP"] = bootstrap
    return subprocess.run(
        [COMMAND, *arguments], input=stdin, capture_output=True, env=environment, timeout=60
    )


@pytest.fixture
def run(shared_broker: BrokerProcess) -> Run:
    """``run("topic", "list")`` against the shared broker; asserts that it succeeds unless ``status`` says otherwise."""

    def run(*arguments: str, stdin: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
        ended = millstream(*arguments, stdin=stdin, bootstrap=shared_broker.bootstrap)
        assert ended.returncode == status, ended.stderr.decode()
        assert b"Traceback" not in ended.stderr
        return ended

    return run


@pytest.fixture
def topic(shared_broker: BrokerProcess) -> str:
    """A new topic of three partitions that keeps records for an hour."""
    name = unique("client")
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})])[name].result(10)
    return name


def lines(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_topics_are_listed_and_described(run: Run, topic: str) -> None:
    run("produce", topic, "--partition", "1", stdin=b"one\ntwo\n")
    listed = json.loads(run("--output", "json", "topic", "list").stdout)
    assert {"name": topic, "partitions": 3, "replicationFactor": 1} in listed
    described = json.loads(run("topic", "describe", topic, "-o", "json").stdout)
    assert described["name"] == topic
    assert described["topicId"]
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
    assert run("consume", topic, "--from", "7000").stdout == b""
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
def follower(shared_broker: BrokerProcess, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member of the group of the topic's name that follows it."""
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
    assert follower.wait(20) == 1
    described = json.loads(run("group", "describe", topic, "-o", "json").stdout)
    assert described["members"] == []
    assert described["partitions"][0]["committed"] >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("topic", "describe", "no-such"),
            'there is no topic "no-such": millstream topic list shows those there are',
        ),
        (("produce", "no-such"), 'there is no topic "no-such": millstream topic list shows those there are'),
        (("consume", "no-such"), 'there is no topic "no-such": millstream topic list shows those there are'),
        (
            ("group", "describe", "no-such"),
            'there is no group "no-such": millstream group list shows those there are',
        ),
        (
            ("consume", "{topic}", "--from", "soon"),
            '--from: "soon" is not allowed: earliest, latest or an offset',
        ),
        (
            ("consume", "{topic}", "--from", "3", "--group", "g"),
            "from: 3 is not allowed with a group: earliest or",
        ),
        (("produce", "{topic}", "--partition", "3"), "partition: 3 is not allowed: {topic} has 0 to 2"),
        (
            ("produce", "{topic}", "--key-separator", ""),
            '--key-separator: "" is not allowed: at least one character',
        ),
        (
            ("produce", "{topic}", "--key-separator", "="),
            "line 2: there is no key separator '=' in it: lines before",
        ),
        (("--bootstrap", "nowhere", "topic", "list"), 'bootstrap: "nowhere" is not allowed: HOST:PORT'),
    ],
)
def test_what_is_wrong_is_one_line_with_a_next_step(
    run: Run, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    ended = run(*(one.replace("{topic}", topic) for one in arguments), stdin=b"a=b\nc\n", status=1)
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"millstream: {said.replace('{topic}', topic)}")
    assert ended.stdout == b""


def test_an_unknown_topic_is_not_created_by_asking(run: Run) -> None:
    name = unique("never")
    for command in ("describe", "consume", "produce"):
        run(*(("topic", command) if command == "describe" else (command,)), name, status=1)
    assert name not in run("topic", "list").stdout.decode()


def test_a_cluster_that_is_not_there_is_said_within_seconds() -> None:
    with socket.socket() as held:  # bound, not listening: nobody else gets the port meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for arguments in (("topic", "list"), ("consume", "t"), ("produce", "t"), ("group", "list")):
            begun = time.monotonic()
            ended = millstream(*arguments, bootstrap=address)
            assert time.monotonic() - begun < 10
            assert ended.returncode == 1
            assert ended.stderr.decode() == (
                f"millstream: no broker at {address} (connection refused): "
                "start one (millstream local up -f DIR), or name another with --bootstrap\n"
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
        thread.join(5)
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"millstream: what listens at {address} does not answer as a broker (")


def test_brokers_that_advertise_what_cannot_be_reached_are_said(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    port = fixed_port()
    advertised = "PLAINTEXT://no-such-host.invalid:9092"
    start_broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}", "advertised.listeners": advertised})
    ended = millstream("topic", "list", bootstrap=f"127.0.0.1:{port}")
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert "cannot be reached where they say they are: no-such-host.invalid:9092 (" in line
    assert "advertised.listeners" in line


def test_commands_of_other_packages_are_there() -> None:
    assert "up" in millstream("local", "--help", bootstrap=None).stdout.decode()
    ended = millstream("no-such-command", bootstrap=None)
    assert ended.returncode == 2
    assert "No such command" in ended.stderr.decode()
