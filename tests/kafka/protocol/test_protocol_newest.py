"""Bytes of messages that other implementations of the protocol do not have yet, and of nullable structs."""

from __future__ import annotations

import pytest

from millstream_kafka.protocol import api_versions, delete_groups, describe_topic_partitions
from millstream_kafka.protocol.schema import MalformedRequest


def test_an_expected_node_in_api_versions() -> None:
    request = api_versions.ApiVersionsRequest("java", "4.4", "id", 7)
    encoded = b"\x05java\x044.4\x03id" + (7).to_bytes(4, "big") + b"\0"
    assert api_versions.API.encode_request(5, request) == encoded
    assert api_versions.API.decode_request(5, encoded) == request
    unknown = api_versions.API.decode_request(5, b"\x02a\x02b\0\xff\xff\xff\xff\0")
    assert (unknown.cluster_id, unknown.node_id) == (None, -1)


def test_messages_of_groups_that_are_not_deleted() -> None:
    results = [
        delete_groups.DeletableGroupResult("a", 0),
        delete_groups.DeletableGroupResult("b", 68, "busy"),
    ]
    response = delete_groups.DeleteGroupsResponse(0, results)
    encoded = b"\0\0\0\0" + b"\x03" + b"\x02a\0\0\0\0" + b"\x02b\0\x44\x05busy\0" + b"\0"
    assert delete_groups.API.encode_response(3, response) == encoded
    assert delete_groups.API.decode_response(3, encoded) == response


@pytest.mark.parametrize(
    ("cursor", "encoded"),
    [
        (None, b"\xff"),
        (describe_topic_partitions.Cursor("t", 3), b"\x01\x02t\0\0\0\x03\0"),
    ],
)
def test_a_cursor_may_be_null(cursor: describe_topic_partitions.Cursor | None, encoded: bytes) -> None:
    request = describe_topic_partitions.DescribeTopicPartitionsRequest([], 5, cursor)
    whole = b"\x01" + b"\0\0\0\x05" + encoded + b"\0"
    assert describe_topic_partitions.API.encode_request(0, request) == whole
    assert describe_topic_partitions.API.decode_request(0, whole) == request
    with pytest.raises(MalformedRequest, match="cursor"):
        describe_topic_partitions.API.decode_request(0, whole[:5] + b"\x01\x09t")
