"""Apache Kafka with secured listeners, and the certificates for them, created by openssl.

SECURE   SASL_SSL: PLAIN and both SCRAM mechanisms    EXPIRED     a certificate of yesterday
MUTUAL   SSL with client certificates                 ELSEWHERE   a certificate for another host
CLEAR    SASL_PLAINTEXT                               SHORT       SASL_PLAINTEXT, sessions end after nine seconds
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .java import run
from .kafka import SERVER_JVM, KafkaProcess

USER, PASSWORD = "mirror", "open sesame"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Authority:
    """A certificate authority in a folder: ca.crt, and NAME.crt, NAME.key, NAME.pem (both) of each certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.openssl("req", "-x509", *_new_key("ca"), "-out", "ca.crt", "-subj", "/CN=Test CA", "-days", "2")

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Path:
        """Issue NAME.pem; with ``days`` -1 it expired yesterday."""
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        self.openssl("req", *_new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        issuer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", extensions.name)
        asked = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-days", str(days))
        self.openssl("x509", "-req", *asked, *issuer)
        pem = self.folder / f"{name}.pem"
        parts = [(self.folder / f"{name}.{end}").read_text() for end in ("key", "crt")]
        pem.write_text("".join(parts))
        return pem

    def openssl(self, *args: str) -> None:
        run(["openssl", *args], cwd=self.folder)


def _new_key(name: str) -> tuple[str, ...]:
    return ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")


LISTENERS = {
    "SECURE": "SASL_SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "CLEAR": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
}


def secured_kafka(folder: Path, authority: Authority, config: dict[str, str]) -> KafkaProcess:
    """A Kafka, not started. USER can log in with PASSWORD by each mechanism; nothing else is protected."""
    settings = secured_settings(authority, config)
    return KafkaProcess(folder, settings, listeners=LISTENERS, users=_users(*SCRAM))


def secured_settings(authority: Authority, config: dict[str, str]) -> dict[str, Any]:
    """The settings of LISTENERS, except their addresses."""
    stores = {
        "secure": authority.issue("broker"),
        "mutual": authority.issue("mutual"),
        "expired": authority.issue("expired", days=-1),
        "elsewhere": authority.issue("elsewhere", "DNS:kafka.example"),
    }
    settings: dict[str, Any] = {**config, "sasl.enabled.mechanisms": f"PLAIN,{','.join(SCRAM)}"}
    for name, pem in stores.items():
        settings[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name}.ssl.keystore.location"] = str(pem)
    settings["listener.name.mutual.ssl.client.auth"] = "required"
    settings["listener.name.mutual.ssl.truststore.type"] = "PEM"
    settings["listener.name.mutual.ssl.truststore.location"] = str(authority.certificate)
    settings |= _scram("secure", *SCRAM) | _scram("clear", SCRAM[1]) | _scram("short", SCRAM[1])
    settings["listener.name.clear.sasl.enabled.mechanisms"] = SCRAM[1]
    settings["listener.name.short.sasl.enabled.mechanisms"] = SCRAM[1]
    settings["listener.name.short.connections.max.reauth.ms"] = "9000"
    settings["listener.name.secure.plain.sasl.jaas.config"] = (
        f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";'
    )
    return settings


def kafka_with_login(folder: Path, config: Mapping[str, str]) -> KafkaProcess:
    """A Kafka for benchmarks, not started, a cluster of its own. Beside its open listener it has CLEAR, without TLS:
    USER logs in by SCRAM-SHA-512."""
    mechanism = SCRAM[1]
    cluster_id = base64.urlsafe_b64encode(b"kafka-" + secrets.token_hex(5).encode())
    settings = {**config, "sasl.enabled.mechanisms": mechanism, **_scram("clear", mechanism)}
    return KafkaProcess(
        folder,
        settings,
        listeners={"CLEAR": "SASL_PLAINTEXT"},
        users=_users(mechanism),
        cluster_id=cluster_id.decode().rstrip("="),
        jvm=SERVER_JVM,
    )


def guarded_kafka(folder: Path) -> KafkaProcess:
    """A Kafka with an authorizer, not started. Its open listener's clients have all rights; USER, who logs in at CLEAR
    by SCRAM-SHA-512, and the subject of a token, at TOKEN, have none yet. Sessions at TOKEN end after 15 seconds."""
    mechanism = SCRAM[1]
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": f"{mechanism},OAUTHBEARER",
        **_scram("clear", mechanism),
        "listener.name.clear.sasl.enabled.mechanisms": mechanism,
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            ' unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.token.connections.max.reauth.ms": "15000",
    }
    listeners = {"CLEAR": "SASL_PLAINTEXT", "TOKEN": "SASL_PLAINTEXT"}
    return KafkaProcess(folder, settings, listeners=listeners, users=_users(mechanism))


def unsigned_token(subject: str, seconds: float = 3600) -> str:
    """A token of OAUTHBEARER that Kafka accepts unless it requires signatures."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now - 1, "exp": now + seconds})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return f"{'.'.join(encoded)}."


def _scram(listener: str, *mechanisms: str) -> dict[str, str]:
    return {
        f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
        for mechanism in mechanisms
    }


def _users(*mechanisms: str) -> list[str]:
    return [f"{mechanism}=[name={USER},password={PASSWORD}]" for mechanism in mechanisms]
