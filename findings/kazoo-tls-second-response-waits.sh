#!/usr/bin/env bash
# kazoo 2.11.0: over TLS, the second of two responses that arrive in one TLS record waits until the next ping.
#
# The connection's loop waits by select for a readable socket, then reads one response. OpenSSL has decrypted the whole record
# by then, so the second response lies in its memory, and select sees nothing more to read on the socket. SSLSocket.pending()
# would tell. The loop goes on when it times out for a ping, a third of the session's timeout later: 10 seconds for one of 30.
# A caller with a shorter time-out takes a fast server for a dead one, and only now and then, as servers seldom put two
# responses into one record. Without TLS, both responses are there at once.
#
# Seen: "plain: both at once; TLS: the second 10 s after the first".
#
# Needs Python 3.11, openssl and a network for pip. Takes half a minute. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kazoo==2.11.0
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$folder/key.pem" -out "$folder/cert.pem" 2>/dev/null
cat > "$folder/waits.py" <<'PY'
"""A server that answers two requests at once, as ZooKeeper's protocol allows, and kazoo as its client."""

import socket
import ssl
import struct
import sys
import threading
import time

from kazoo.client import KazooClient

NO_NODE, PING, EXISTS = -101, 11, 3
folder = sys.argv[1]


def frame(data):
    return struct.pack(">i", len(data)) + data


def serve(listener, context):
    peer, _ = listener.accept()
    if context:
        peer = context.wrap_socket(peer, server_side=True)
    received = peer.makefile("rb")

    def request():
        (size,) = struct.unpack(">i", received.read(4))
        return received.read(size)

    request()
    peer.sendall(frame(struct.pack(">iiqi16s", 0, 30_000, 1, 16, bytes(16))))
    held = []
    while True:
        xid, kind = struct.unpack_from(">ii", request())
        if kind == PING:
            peer.sendall(frame(struct.pack(">iqi", xid, 1, 0)))
        elif kind == EXISTS:
            held.append(frame(struct.pack(">iqi", xid, 1, NO_NODE)))
            if len(held) == 2:
                peer.sendall(b"".join(held))


def wait(use_tls):
    context = None
    if use_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    client = KazooClient(
        f"localhost:{listener.getsockname()[1]}", timeout=30, use_ssl=use_tls, ca=f"{folder}/cert.pem"
    )
    client.start()
    first, second = client.exists_async("/a"), client.exists_async("/b")
    assert first.get(timeout=25) is None
    start = time.monotonic()
    assert second.get(timeout=25) is None
    return time.monotonic() - start


plain, tls = wait(False), wait(True)
print(
    "plain:", "both at once;" if plain < 1 else f"the second {plain:.0f} s later;",
    "TLS:", "both at once" if tls < 1 else f"the second {tls:.0f} s after the first",
    flush=True,
)
PY
seen=$(timeout 120 "$folder/venv/bin/python" -c "
import os, runpy, sys
sys.argv = ['waits.py', '$folder']
runpy.run_path('$folder/waits.py')
sys.stdout.flush()
os._exit(0)  # the clients are left connected
")
echo "$seen"
[ "$seen" = "plain: both at once; TLS: the second 10 s after the first" ]
