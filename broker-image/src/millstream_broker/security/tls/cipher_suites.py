"""Names of cipher suites: Java's and the standard's, as Kafka's keys have them, and OpenSSL's."""

from __future__ import annotations

from collections.abc import Sequence

OF_TLS_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
"""OpenSSL offers all of them: Python has no way to choose."""


def openssl_name(name: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2; a name in OpenSSL's form stays.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256.
    """
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = cipher.replace("_CBC_SHA", "_SHA").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    for bits in ("128", "256"):
        cipher = cipher.replace(f"AES_{bits}", f"AES{bits}")
    parts = [*([] if exchange == "RSA" else exchange.split("_")), *cipher.split("_")]
    return "-".join(parts)


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The suites of TLS 1.3, and OpenSSL's names of those of TLS 1.2."""
    newer = [name for name in names if name in OF_TLS_1_3]
    return newer, [openssl_name(name) for name in names if name not in OF_TLS_1_3]
