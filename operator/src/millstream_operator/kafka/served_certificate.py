"""The certificate that a broker serves, by a TLS handshake that verifies nothing; blocking."""

from __future__ import annotations

import socket
import ssl

from cryptography import x509

TIMEOUT_S = 2.0


def served_certificate(host: str, port: int) -> x509.Certificate | None:
    """None if the broker does not answer, or not with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # what is served is compared with what was issued
    try:
        with (
            socket.create_connection((host, port), TIMEOUT_S) as plain,
            context.wrap_socket(plain) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
        return None if found is None else x509.load_der_x509_certificate(found)
    except (OSError, ValueError):
        return None
