"""`millstream doctor` names the topics whose logs a broker keeps as strays."""

from __future__ import annotations

import socket
import struct

import pytest

from millstream import diagnosis
from millstream.diagnosis import Finding
from millstream_harness.doctor import served
from millstream_kafka.protocol import api_versions, describe_log_dirs
from millstream_kafka.protocol.api_versions import ApiVersion, ApiVersionsResponse
from millstream_kafka.protocol.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

STRAYS = [f"{name}.{number:032x}-stray" for number, name in enumerate(["a-0", "a-1", "b-c-12"])]


def response(*topics: str) -> bytes:
    """The body of a DescribeLogDirs response."""
    partitions = [DescribeLogDirsPartition(0, 5, 0, False), DescribeLogDirsPartition(1, 5, 0, False)]
    found = [DescribeLogDirsTopic(name, partitions) for name in topics]
    one, two = DescribeLogDirsResult(0, "/one", found[:2]), DescribeLogDirsResult(0, "/two", found[2:])
    return bytes(describe_log_dirs.API.encode_response(1, DescribeLogDirsResponse(results=[one, two])))


def findings(answer: bytes) -> list[Finding]:
    """What is found at a server that answers DescribeLogDirs with this body."""
    served_apis = [ApiVersion(18, 0, 3), ApiVersion(35, 1, 1)]
    versions = bytes(api_versions.API.encode_response(3, ApiVersionsResponse(api_keys=served_apis)))

    def read(connection: socket.socket) -> tuple[int, int, bytes, bytes]:
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        request = connection.recv(size, socket.MSG_WAITALL)
        api, version = struct.unpack_from(">hh", request)
        return api, version, request[4:8], request

    def send(connection: socket.socket, correlation_id: bytes, body: bytes) -> None:
        connection.sendall(struct.pack(">i", 4 + len(body)) + correlation_id + body)

    def serve(connection: socket.socket) -> None:
        api, version, correlation_id, _ = read(connection)
        assert api == 18
        if version > 3:
            refused = ApiVersionsResponse(error_code=35, api_keys=served_apis)
            send(connection, correlation_id, bytes(api_versions.API.encode_response(0, refused)))
            api, version, correlation_id, _ = read(connection)
        assert (api, version) == (18, 3)
        send(connection, correlation_id, versions)
        api, version, correlation_id, request = read(connection)
        assert (api, version) == (35, 1)
        assert request.endswith(struct.pack(">i", -1)), "all topics"
        send(connection, correlation_id, answer)

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


@pytest.mark.parametrize("answer", [b"", response(*STRAYS)[:-3], b"\xff" * 30])
def test_an_answer_that_is_none_is_no_finding(answer: bytes) -> None:
    assert findings(answer) == []
