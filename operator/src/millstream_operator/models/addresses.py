"""HOST:PORT, with IPv4, IPv6 or both. A host that is an IPv6 address is in brackets."""

from __future__ import annotations

import ipaddress


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_wildcard(host: str) -> bool:
    """Whether the host stands for every address of the machine: empty, 0.0.0.0 or ::."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
