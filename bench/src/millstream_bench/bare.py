"""The bare loop as a yardstick for the broker's CPU: recv + CRC32C + pwrite, and sendfile; nothing else.

    python -m millstream_bench.bare FILE TOPIC

prints its port and serves connections one after the other, like a broker with only that topic of
one partition: it checks the batch of a Produce v7 frame and appends it to FILE, and responds to a Fetch v4 with as
many of the batches, which are all of one size, as fit into a megabyte, from where the last one ended.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

import crc32c

MAX_FRAME = 4 << 20
FETCH_BYTES = 1 << 20
BATCH_HEAD = 21  # base offset, length, leader epoch, magic, CRC: the bytes that the CRC does not cover


def serve(sock: socket.socket, log: int, topic: bytes) -> None:
    """Serve one connection, until the client ends it."""
    buffer = bytearray(MAX_FRAME)
    view = memoryview(buffer)
    position = end = os.fstat(log).st_size
    answer = 0
    name = struct.pack(">h", len(topic)) + topic
    acknowledged = struct.pack(">ii", 1, 1) + name + struct.pack(">iihqqqi", 1, 0, 0, 0, -1, 0, 0)
    acknowledgement = struct.pack(">i", len(acknowledged)) + acknowledged
    while True:
        if not _receive(sock, view[:4]):
            return
        (length,) = struct.unpack_from(">i", buffer)
        _receive(sock, view[:length])
        (key,) = struct.unpack_from(">h", buffer)
        if key == 0:
            size = _batch_size(buffer, length, len(name))
            batch = view[length - size : length]
            if crc32c.crc32c(batch[BATCH_HEAD:]) != struct.unpack_from(">I", batch, BATCH_HEAD - 4)[0]:
                return
            os.pwrite(log, batch, end)
            end += size
            sock.sendall(acknowledgement)
        else:
            if position >= end:
                position = 0
                (batch_length,) = struct.unpack(">i", os.pread(log, 4, 8))
                answer = FETCH_BYTES // (12 + batch_length) * (12 + batch_length)
            size = min(answer, end - position)
            body = struct.pack(">iii", 1, 0, 1) + name + struct.pack(">iihqqii", 1, 0, 0, end, end, 0, size)
            sock.sendall(struct.pack(">i", len(body) + size) + body)
            while size:
                sent = os.sendfile(sock.fileno(), log, position, size)
                position += sent
                size -= sent


def _batch_size(buffer: bytearray, length: int, name: int) -> int:
    """The batch's size. It ends the frame; its length comes before it, at a position that depends on the names."""
    (client,) = struct.unpack_from(">h", buffer, 8)
    at = 10 + client + 2 + 2 + 4 + 4 + name + 4 + 4
    (size,) = struct.unpack_from(">i", buffer, at)
    if at + 4 + size != length:
        raise ValueError("the frame is not a Produce v7 of one batch")
    return int(size)


def _receive(sock: socket.socket, view: memoryview) -> bool:
    while view:
        count = sock.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def main(path: str, topic: str) -> None:
    log = os.open(path, os.O_RDWR | os.O_CREAT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            sock, _ = listener.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(sock, log, topic.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
