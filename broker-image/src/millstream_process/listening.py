"""Addresses that a process listens on, with IPv4, IPv6 or both.

A wildcard host (empty, `0.0.0.0` or `[::]`) is every address of the machine in both families, as in Apache Kafka: one
IPv6 socket that serves IPv4, too. A machine without IPv6 gets an IPv4 socket. A name stands for its first IPv4 address,
else its first IPv6 address.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

_MAPPED = "::ffff:"


def is_wildcard(host: str) -> bool:
    """Whether the host stands for every address of the machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def host_port(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_host(host: str) -> str:
    """A peer's address; that of an IPv4 peer on an IPv6 socket as IPv4."""
    return host.removeprefix(_MAPPED) if host.startswith(_MAPPED) and "." in host else host


def network_of(host: str) -> str:
    """The address, or of IPv6 the network of 64 bits, all of which one client may have."""
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False))


def bind(host: str, port: int) -> socket.socket:
    """A bound, non-blocking socket that does not listen yet. Raises OSError."""
    if not is_wildcard(host):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        return _bound(family, address)
    try:
        return _bound(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return _bound(socket.AF_INET, ("0.0.0.0", port))


def why_not(error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"the host does not resolve: {error.strerror}. Check its spelling and this machine's DNS."
    reason = f"{os.strerror(error.errno) if error.errno else error}."
    if error.errno == errno.EADDRINUSE:
        return f"{reason} Stop the process that listens there, or choose another address."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{reason} Choose an address of this machine, or no host at all for every address."
    if error.errno == errno.EACCES:
        return f"{reason} Choose a port from 1024 on."
    return f"{reason} Choose another address."


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
