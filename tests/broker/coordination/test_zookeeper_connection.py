"""Responses by TLS: several may arrive in one record, which the kernel no longer has after the first is read."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

from millstream_broker.coordination.stores.zookeeper_connection import Handler, ZooKeeperAccess
from millstream_harness.certificates import Authority


def test_data_that_is_decrypted_but_not_read_is_ready_to_read(tmp_path: Path) -> None:
    authority = Authority()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(authority.issue().write(tmp_path / "server.pem"))
    context = authority.client_context()

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with server.wrap_socket(listening.accept()[0], server_side=True) as accepted:
                accepted.sendall(b"12345678")
                accepted.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        handler = Handler(ZooKeeperAccess(lambda: context))
        client = handler.create_connection(listening.getsockname(), hostname="localhost", timeout=5.0)
        mine, theirs = socket.socketpair()
        with client, mine, theirs:
            assert client.recv(4) == b"1234"
            assert handler.select([client, mine], [], [], 60.0)[0] == [client]
            theirs.send(b"x")
            assert handler.select([client, mine], [], [], 60.0)[0] == [client, mine]
            assert client.recv(4) == b"5678"
            assert handler.select([client, mine], [], [], 60.0)[0] == [mine]
            client.send(b"x")
        serving.join()
