"""Which ports a cluster's processes listen on: those of the manifest if they are free, else the next free ones.

A choice is kept in the state, so that clients find a cluster at the same address after a restart; it is made anew when
the manifest asks for another port, or when somebody else has taken the port meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

HOST = "127.0.0.1"
LAST = 65535


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as brokers do: not kept by closed connections
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(
    asked: Iterable[tuple[str, int]],
    kept: dict[str, int],
    taken: Iterable[int],
    free: Callable[[int], bool] = is_free,
) -> dict[str, int]:
    """A port for each (name, port asked for); ``kept`` is an earlier answer, ``taken`` is promised to others."""
    chosen: dict[str, int] = {}
    promised = set(taken)
    for name, port in asked:
        key = f"{name}:{port}"
        candidates = [kept[key]] if key in kept else []
        candidates += range(port, LAST + 1)
        found = next((p for p in candidates if p not in promised and free(p)), None)
        if found is None:
            raise OSError(f"no port is free from {port} on")
        chosen[key] = found
        promised.add(found)
    return chosen
