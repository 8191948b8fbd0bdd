"""The ports of a cluster's processes: those in the manifest if they are free, else the next free ones.

The state keeps a choice, so that clients find a cluster at the same address after a restart. A port is chosen again if
the manifest names another one, or if another process has taken it meanwhile.
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
        )  # as brokers do: closed connections do not keep the port
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
    """A port for each (name, requested port); ``kept`` is the earlier choice, ``taken`` has others' ports."""
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
