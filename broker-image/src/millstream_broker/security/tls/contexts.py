"""OpenSSL's contexts of a listener, from its certificates and Kafka's keys.

Sessions are not resumed, so each handshake verifies the client's certificate again. Renegotiation is off.
"""

from __future__ import annotations

import logging
import os
import ssl

from cryptography.hazmat.primitives.serialization import Encoding

from ...config.config import ListenerConfig
from ...config.config_types import ConfigError
from .cipher_suites import openssl_name, split
from .keystores import KeyStore, TlsValues, TrustStore

log = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(
    values: ListenerConfig, keys: KeyStore, trusted: TrustStore, *, has_sasl: bool = False
) -> ssl.SSLContext:
    """The context for clients of a listener. Raises ConfigError.

    With SASL, as in Kafka (KIP-684), `ssl.client.auth` counts only if it is set for this listener: clients
    authenticate by SASL.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    configure(context, values, keys, trusted)
    _require_a_suite_to_serve(values)
    key = "ssl.client.auth"
    wanted = "none" if has_sasl and values.name_of(key) == key else values.text(key)
    if wanted != "none" and not trusted:
        name = values.name_of(key)
        raise ConfigError(
            f"{name}={wanted}: clients' certificates need authorities that issue them: set ssl.truststore.location"
            " or ssl.truststore.certificates",
            name,
        )
    context.verify_mode = _VERIFY[wanted]
    return context


def client_context(values: ListenerConfig, keys: KeyStore, trusted: TrustStore) -> ssl.SSLContext:
    """The context for connections to other brokers, by their listener of the same name. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = values.text("ssl.endpoint.identification.algorithm") == "https"
    if not trusted:
        raise ConfigError(
            f"listener {values.listener} is for brokers, which verify each other's certificates: set"
            f" {values.name_of('ssl.truststore.location')} or ssl.truststore.certificates",
            "ssl.truststore.location",
        )
    configure(context, values, keys, trusted)
    return context


def configure(context: ssl.SSLContext, values: TlsValues, keys: KeyStore | None, trusted: TrustStore) -> None:
    """Versions, cipher suites and certificates. Raises ConfigError."""
    context.minimum_version, context.maximum_version = _versions(values)
    _choose_suites(context, values)
    if keys is not None:
        _load_keys(context, values, keys)
    trust(context, trusted)


def trust(context: ssl.SSLContext, trusted: TrustStore) -> None:
    """Trust each certificate, even if another one has issued it, as in Java."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if trusted:
        context.load_verify_locations(cadata=b"".join(each.public_bytes(Encoding.DER) for each in trusted))


def _versions(values: TlsValues) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """As in Kafka, `ssl.protocol` does not count."""
    names = values.strings("ssl.enabled.protocols") or list(_VERSIONS)
    enabled = [_VERSIONS[name] for name in names]
    return min(enabled), max(enabled)


def _choose_suites(context: ssl.SSLContext, values: TlsValues) -> None:
    key = "ssl.cipher.suites"
    names = values.strings(key)
    if not names:
        return
    newer, older = split(names)
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    elif not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if context.minimum_version > context.maximum_version:
        name = values.name_of(key)
        raise ConfigError(f"{name}={','.join(names)}: none is of a version in ssl.enabled.protocols", name)
    for suite in older:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError:
            name = values.name_of(key)
            given = next(each for each in names if openssl_name(each) == suite)
            raise ConfigError(f"{name}: OpenSSL has no cipher suite {given}", name) from None
    if older:
        context.set_ciphers(":".join(older))


def _require_a_suite_to_serve(values: ListenerConfig) -> None:
    """OpenSSL takes suites with DHE, but serves them only with parameters, which Python has no way to generate."""
    key = "ssl.cipher.suites"
    newer, older = split(values.strings(key))
    if older and not newer and all(suite.startswith("DHE-") for suite in older):
        name = values.name_of(key)
        raise ConfigError(
            f"{name}={','.join(values.strings(key))}: brokers cannot serve suites with DHE: add one with ECDHE, such as"
            " TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 or, for an RSA key, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            name,
        )


def _load_keys(context: ssl.SSLContext, values: TlsValues, keys: KeyStore) -> None:
    """OpenSSL reads keys from files: this one is in memory, and its name is valid in this process alone."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(keys.pem())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        reason = (error.reason or "not usable").replace("_", " ").lower()
        raise ConfigError(f"{values.owner}: OpenSSL refuses its certificate: {reason}") from None
    finally:
        os.close(descriptor)
