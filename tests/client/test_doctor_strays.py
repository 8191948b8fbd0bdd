"""`millstream doctor` names the topics whose logs a broker keeps as strays."""

from __future__ import annotations

import socket
import struct

import pytest

from millstream import diagnosis
from millstream.diagnosis import Finding
from millstream_harness.doctor import served
from millstream_kafka.protocol import describe_log_dirs
from millstream_kafka.protocol.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

STRAYS = [f"{name}.{number:032x}-stray" for number, name in enumerate(["a-0", "a-1", "b-c-12"])]


def response(*topics: str) -> bytes:
    partitions = [DescribeLogDirsPartition(0, 5, 0, False), DescribeLogDirsPartition(1, 5, 0, False)]
    found = [DescribeLogDirsTopic(name, partitions) for name in topics]
    one, two = DescribeLogDirsResult(0, "/one", found[:2]), DescribeLogDirsResult(0, "/two", found[2:])
    body = describe_log_dirs.API.encode_response(1, DescribeLogDirsResponse(results=[one, two]))
    return struct.pack(">i", 1) + bytes(body)


def findings(answer: bytes) -> list[Finding]:
    def serve(connection: socket.socket) -> None:
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        request = connection.recv(size, socket.MSG_WAITALL)
        assert struct.unpack_from(">hhi", request) == (35, 1, 1)
        assert request.endswith(struct.pack(">i", -1)), "all topics"
        connection.sendall(struct.pack(">i", len(answer)) + answer)

    with served(serve) as address:
        host, _, port = address.rpartition(":")
        return list(diagnosis._strays(3, host, int(port), {}))


def test_strays_are_a_problem() -> None:
    (found,) = findings(response("orders", *STRAYS))
    assert found.step == "strays"
    assert found.problem == (
        "broker 3 keeps 3 logs of topics that the cluster does not know: a, b-c; restore the cluster's ZooKeeper to"
        " have them back, or remove them (millstream stray list, millstream stray remove)"
    )


def test_many_topics_are_counted() -> None:
    (found,) = findings(response(*(f"t{number}-0.{number:032x}-stray" for number in range(9))))
    assert "t0, t1, t2, t3, t4 and 4 more;" in found.problem


def test_a_broker_without_strays_is_no_finding() -> None:
    assert findings(response("orders", "a-0.stray", "a-stray")) == []


@pytest.mark.parametrize("answer", [b"", b"\0" * 12, response(*STRAYS)[:-3], b"\0\0\0\1" + b"\xff" * 30])
def test_an_answer_that_is_none_is_no_finding(answer: bytes) -> None:
    assert findings(answer) == []
