"""Connects with librdkafka's TLS settings from Python, to explain what is wrong with them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NO_CERTIFICATE = "it requires a certificate of the client; set ssl.certificate.location and ssl.key.location"
OUR_CERTIFICATE = "it does not accept the client's certificate"

OF_ANOTHER_NAME = (
    "use a name that it is for; or set ssl.endpoint.identification.algorithm=none where names prove nothing"
)
NOT_TRUSTED = {
    9: "it is not valid yet: compare the clocks of this machine and of the authority's",
    10: "renew it on the broker, or correct this machine's clock",
    62: OF_ANOTHER_NAME,
    64: OF_ANOTHER_NAME,
}
"""What to do, by OpenSSL's codes."""
LATER_S = 1.0
"""How long after its handshake a server may take to refuse a certificate."""


def is_used(config: Mapping[str, Any]) -> bool:
    """Whether librdkafka's settings use TLS."""
    return str(config.get("security.protocol", "")).lower() in ("ssl", "sasl_ssl")


def has_certificate(config: Mapping[str, Any]) -> bool:
    """Whether librdkafka's settings include a client certificate."""
    return any(str(key).startswith(("ssl.certificate.", "ssl.keystore.")) for key in config)


def context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """An SSL context from librdkafka's settings. OSError or ValueError for files that are no certificates."""
    for key in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        path = str(config.get(key, ""))
        if path and path != "probe" and not Path(path).exists():
            raise ValueError(f"{key}: there is no {path}; name a file in PEM format")
    found = ssl.create_default_context()
    authorities = str(config.get("ssl.ca.location", ""))
    if authorities and authorities != "probe":
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        where = Path(authorities)
        try:
            found.load_verify_locations(None if where.is_dir() else where, where if where.is_dir() else None)
        except ssl.SSLError:
            raise ValueError(
                f"ssl.ca.location: {where} has no certificate in PEM format; name another file"
            ) from None
    if (pem := config.get("ssl.ca.pem")) is not None:
        found.load_verify_locations(cadata=str(pem))
    if certificate := config.get("ssl.certificate.location"):
        own_key = config.get("ssl.key.location")
        try:
            found.load_cert_chain(
                str(certificate), own_key and str(own_key), str(config.get("ssl.key.password", ""))
            )
        except ssl.SSLError as error:
            raise ValueError(
                f"ssl.certificate.location and ssl.key.location: {_reason(error)}; name a certificate and its key"
            ) from None
    if str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        found.check_hostname = False
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def why_refused(error: Exception) -> str:
    """The problem with certificates that ended a connection; "" if it ended for another reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = NOT_TRUSTED.get(error.verify_code, "set ssl.ca.location to the authority that has signed it")
        return f"its certificate is not trusted: {error.verify_message}; {advice}"
    reason = _reason(error).upper().replace(" ", "_") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" not in reason:
        return ""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return NO_CERTIFICATE
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return f"{OUR_CERTIFICATE} ({_reason(error)}); use one that its authorities signed"
    return ""


def why_refused_later(host: str, port: int, context: ssl.SSLContext) -> str:
    """The same for a server that checks the client's certificate after the handshake (TLS 1.3).

    It reports the problem and closes the connection, and the report is lost if the client has sent a request meanwhile.
    """
    try:
        with (
            socket.create_connection((host, port), LATER_S) as sock,
            context.wrap_socket(sock, server_hostname=host) as secured,
        ):
            secured.recv(1)
    except OSError as error:
        return why_refused(error)
    return ""


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whether a server answers in TLS, whatever its certificate."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as sock,
            anyone.wrap_socket(sock, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:  # a server that requires a certificate has said so in TLS
        return "ALERT" in str(error).upper() and "WRONG_VERSION" not in str(error)
    except OSError:
        return False


def _reason(error: Exception) -> str:
    """OpenSSL's words, without the place in its code."""
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
