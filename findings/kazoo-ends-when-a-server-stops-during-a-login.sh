#!/usr/bin/env bash
# kazoo 2.11.0: a ZooKeeper server that goes away during a SASL login ends the client for good, with the right password.
#
# Without SASL, kazoo connects again to the next server, or to the same one once it is back. During the SASL exchange it takes
# every closed connection for a refused login: the state becomes LOST, its thread ends, and no attempt follows, although the next
# server would accept the login. So of the clients of an ensemble, a rolling restart ends those that happen to log in at that
# moment. start() does not report it either: it returns, and a listener has seen CONNECTED, before the login has begun.
#
# Here the server closes the first connection in place of its first response, and accepts every later one.
#
# Seen: "no SASL: CONNECTED SUSPENDED CONNECTED, 2 connections; SASL: CONNECTED LOST, 1 connection; start() returned both times".
#
# Needs Python 3.11 and a network for pip. Takes half a minute. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kazoo==2.11.0 pure-sasl==0.6.2
cat > "$folder/login.py" <<'PY'
"""A server that stops during the first connection's first request and is back at once, and kazoo as its client."""

import os
import socket
import struct
import threading
import time

from kazoo.client import KazooClient

PING, SASL, NO_NODE = 11, 102, -101
CHALLENGE = b'realm="zk-sasl-md5",nonce="bm9uY2U=",qop="auth",charset=utf-8,algorithm=md5-sess'


def frame(data):
    return struct.pack(">i", len(data)) + data


def serve(listener, accepted):
    while True:
        peer, _ = listener.accept()
        accepted.append(peer)
        received = peer.makefile("rb")

        def request():
            (size,) = struct.unpack(">i", received.read(4))
            return received.read(size)

        try:
            request()
            peer.sendall(frame(struct.pack(">iiqi16s", 0, 12_000, 1, 16, bytes(16))))
            while True:
                xid, kind = struct.unpack_from(">ii", request())
                if len(accepted) == 1 and kind != PING:
                    received.close()
                    peer.shutdown(socket.SHUT_RDWR)
                    peer.close()
                    break
                header = struct.pack(">iqi", xid, 1, 0)
                peer.sendall(frame(header + struct.pack(">i", len(CHALLENGE)) + CHALLENGE if kind == SASL else header))
        except (OSError, struct.error):
            continue


def states(sasl_options):
    listener, accepted, seen = socket.create_server(("127.0.0.1", 0)), [], []
    threading.Thread(target=serve, args=(listener, accepted), daemon=True).start()
    client = KazooClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout=12, sasl_options=sasl_options)
    client.add_listener(lambda state: seen.append(str(state)))
    client.start(timeout=10)
    if sasl_options is None:
        client.exists_async("/a")
    time.sleep(8)  # many attempts would fit
    count = len(accepted)
    return f"{' '.join(seen[:3])}, {count} connection{'s' * (count > 1)}"


login = {"mechanism": "DIGEST-MD5", "username": "app", "password": "right"}
print(f"no SASL: {states(None)}; SASL: {states(login)}; start() returned both times", flush=True)
os._exit(0)  # the clients are left connected
PY
seen=$(timeout 120 "$folder/venv/bin/python" "$folder/login.py" 2>/dev/null)
echo "$seen"
[ "$seen" = "no SASL: CONNECTED SUSPENDED CONNECTED, 2 connections; SASL: CONNECTED LOST, 1 connection; start() returned both times" ]
