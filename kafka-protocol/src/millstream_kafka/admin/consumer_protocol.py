"""ConsumerProtocolAssignment: the partitions of a group's member, as its leader wrote them; any client may write it.

int16 version, array of (topic name, array of int32 partitions), user data
"""

from __future__ import annotations

import struct

from ..topic_partition import TopicPartition


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """In the assignment's order of topics, sorted by partition; none for other data."""
    found: list[TopicPartition] = []
    try:
        _version, topics = struct.unpack_from(">hi", assignment)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, position)
            (name,) = struct.unpack_from(f">{length}s", assignment, position + 2)
            position += 2 + length
            (count,) = struct.unpack_from(">i", assignment, position)
            indexes = struct.unpack_from(f">{count}i", assignment, position + 4)
            position += 4 + 4 * count
            found.extend((name.decode(), index) for index in sorted(indexes))
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(found)
