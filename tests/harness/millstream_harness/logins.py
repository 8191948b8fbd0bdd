"""A broker with each way to log in over TLS, and what client programs in any language do there.

Its listener SECURE (SASL_SSL) has every mechanism, MUTUAL (SSL) requires certificates of clients, and sessions at SHORT
end after SESSION_MS. Each way to log in has its own user, with the rights that a client needs to write and read topics
and groups that begin with the way's name, and no other.

A client program gets a file of steps and prints ``RESULT name text`` for each: ``ok``, or the client's own error. All
that a step needs is in it, so that programs do not know what is right or wrong:

    round-trip   write the values to the topic, read them back as a group from the beginning, and compare
    write        write the values to the topic
    read         read one record of the topic as a group from the beginning
    session      write the values one after the other, with pauses, by one producer
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.admin.access import Acl, ScramCredential
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic
from millstream_kafka.client import ClusterClient
from millstream_kafka.scram_mechanism import ScramMechanism

from .background_loop import background_loop
from .certificates import Authority
from .in_process_broker import InProcessBroker
from .java import run

LOGINS = {
    "plain": "PLAIN",
    "scram-256": "SCRAM-SHA-256",
    "scram-512": "SCRAM-SHA-512",
    "token": "OAUTHBEARER",
    "certificate": "",
}
"""The names of the ways to log in, which are those of their users, and their mechanisms."""
PASSWORD = 'open "sesame" =;'
SESSION_MS = 3000
FORBIDDEN = "forbidden"
"""A topic and a group that no user may use."""
VALUES = ["a", "Grüße, 世界", "x" * 20_000, *(f"value {number}" for number in range(20))]
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0,MUTUAL://127.0.0.1:0,SHORT://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL,SHORT:SASL_SSL",
    "sasl.enabled.mechanisms": ",".join(filter(None, LOGINS.values())),
    "listener.name.mutual.ssl.client.auth": "required",
    "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*?)(,.*)?$/$1/,DEFAULT",
    "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
    "sasl.oauthbearer.expected.issuer": "the provider",
    "sasl.oauthbearer.expected.audience": "millstream",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
}


@dataclass(frozen=True, slots=True)
class Step:
    """What a client program does, and with which credentials; files are PEM."""

    name: str
    action: str
    bootstrap: str
    mechanism: str
    """Empty: SSL with the certificate, instead of SASL_SSL."""
    ca: str
    user: str
    password: str
    token: str
    certificate: str
    """The private key and the certificate, in one file."""
    topic: str
    group: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class LoginBroker:
    broker: InProcessBroker
    addresses: Mapping[str, str]
    """Of its listeners, by their names."""
    folder: Path
    authority: Authority
    key: rsa.RSAPrivateKey

    def token(self, audience: str = "millstream") -> str:
        now = int(time.time())
        claims = {"sub": "token", "iss": "the provider", "aud": audience, "iat": now, "exp": now + 3600}
        return jwt.encode(claims, self.key, "RS256", {"kid": "1"})

    def create(self, topics: Sequence[str]) -> None:
        background_loop().run(self.prepare(topics))

    def allow(self, user: str, names: Sequence[str], *operations: AclOperation) -> None:
        """Give further rights to topics and groups that begin with these names."""
        rules = [
            Acl(kind, name, PatternType.PREFIXED, f"User:{user}", "*", operation, PermissionType.ALLOW)
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
            for name in names
            for operation in operations
            if kind is ResourceType.TOPIC or operation in (AclOperation.READ, AclOperation.DESCRIBE)
        ]
        background_loop().run(_create(self.broker.bootstrap, rules))

    def audited(self) -> str:
        """The audit log."""
        return (self.folder / "audit.log").read_text()

    def step(self, client: str, login: str, scenario: str) -> Step:
        """The step of a scenario; see SCENARIOS."""
        mechanism = LOGINS[login]
        right = Step(
            name=f"{login}:{scenario}",
            action=scenario,
            bootstrap=self.addresses["SECURE" if mechanism else "MUTUAL"],
            mechanism=mechanism,
            ca=str(self.folder / "ca.pem"),
            user=login,
            password=PASSWORD,
            token=self.token(),
            certificate=str(self.folder / "client.pem"),
            topic=f"{login}-{client}",
            group=f"{login}-{client}",
            values=VALUES,
        )
        changes: Mapping[str, Mapping[str, object]] = {
            "round-trip": {},
            "wrong-credential": {
                "action": "write",
                "password": "open barley",
                "token": self.token("another service"),
                "certificate": str(self.folder / "stranger.pem"),
            },
            "untrusted-ca": {"action": "write", "ca": str(self.folder / "other-ca.pem")},
            "forbidden-topic": {"action": "write", "topic": FORBIDDEN},
            "forbidden-group": {"action": "read", "group": FORBIDDEN},
            "session": {"topic": f"{login}-{client}-session", "bootstrap": self.addresses["SHORT"]},
        }
        return replace(right, **changes[scenario])  # type: ignore[arg-type]

    async def prepare(self, topics: Sequence[str]) -> None:
        async with ClusterClient(self.broker.bootstrap) as cluster:
            made = await AdminClient(cluster).create_topics([NewTopic(name, 1, 1, {}) for name in topics])
            assert set(made.values()) == {None}, made

    def play(
        self, command: Sequence[str], steps: Sequence[Step], cwd: Path | None = None
    ) -> tuple[Mapping[str, str], str]:
        """Run a client program; returns its results by the names of the steps, and its log."""
        topics = {step.topic for step in steps} - {FORBIDDEN}
        self.create(sorted(topics))
        settings = self.folder / "steps.json"
        settings.write_text(json.dumps([asdict(step) for step in steps]))
        done = run([*command, str(settings)], cwd=cwd, timeout=170)
        found = dict(re.findall(r"^RESULT (\S+) (.*)$", done.stdout, re.MULTILINE))
        assert found, done.stdout + done.stderr
        return found, done.stderr


@contextmanager
def at_level(name: str, level: int) -> Iterator[None]:
    """A logger has this level meanwhile: a broker's process logs from INFO on."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def login_broker(folder: Path) -> Iterator[LoginBroker]:
    authority, stranger = Authority(), Authority("Another CA")
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "other-ca.pem").write_text(stranger.pem)
    authority.issue("certificate", ()).write(folder / "client.pem")
    stranger.issue("certificate", ()).write(folder / "stranger.pem")
    key = rsa.generate_private_key(65537, 2048)
    keys = [{**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1"}]
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    config = {
        **CONFIG,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue().write(folder / "broker.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "audit.log": str(folder / "audit.log"),
        "audit.log.max.per.second": "10000",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
    }
    for name in ("secure", "short"):
        config[f"listener.name.{name}.plain.sasl.jaas.config"] = (
            f'{PLAIN_MODULE} required user_plain="{quoted}";'
        )
    with at_level("millstream_broker", logging.INFO), InProcessBroker(folder / "broker", config) as broker:
        (record,) = broker.on_loop.broker.replicas.metadata.state.brokers.values()
        addresses = {listener.name: f"127.0.0.1:{listener.port}" for listener in record.listeners}
        background_loop().run(_users(broker.bootstrap))
        made = LoginBroker(broker, addresses, folder, authority, key)
        background_loop().run(made.prepare([FORBIDDEN]))
        yield made


async def _users(bootstrap: str) -> None:
    """Add the users of SCRAM, and each user's rights."""
    async with ClusterClient(bootstrap) as cluster:
        admin = AdminClient(cluster)
        for mechanism in ScramMechanism:
            (user,) = (name for name, label in LOGINS.items() if label == mechanism.label)
            credential = ScramCredential.of_password(user, mechanism, PASSWORD)
            assert await admin.alter_scram_credentials([credential]) == {user: None}
        rules = [
            Acl(kind, f"{user}-", PatternType.PREFIXED, f"User:{user}", "*", operation, PermissionType.ALLOW)
            for user in LOGINS
            for kind, operation in (
                (ResourceType.TOPIC, AclOperation.WRITE),
                (ResourceType.TOPIC, AclOperation.READ),
                (ResourceType.GROUP, AclOperation.READ),
            )
        ]
    await _create(bootstrap, rules)


async def _create(bootstrap: str, rules: Sequence[Acl]) -> None:
    async with ClusterClient(bootstrap) as cluster:
        assert set((await AdminClient(cluster).create_acls(rules)).values()) == {None}


def java_properties(step: Step) -> dict[str, str]:
    """The step's credentials for programs with the Java client, by SCRAM, PLAIN or a certificate."""
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": step.ca}
    if not step.mechanism:
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": step.certificate}
        return {"security.protocol": "SSL", **own, **trust}
    module = PLAIN_MODULE if step.mechanism == "PLAIN" else SCRAM_MODULE
    password = step.password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": step.mechanism,
        "sasl.jaas.config": f'{module} required username="{step.user}" password="{password}";',
        **trust,
    }


def prefixed(prefix: str, properties: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{key}": value for key, value in properties.items()}


def spark_options(step: Step) -> dict[str, str]:
    """Options of Spark's Kafka source and sink."""
    return {
        **prefixed("kafka.", java_properties(step)),
        "kafka.bootstrap.servers": step.bootstrap,
        "subscribe": step.topic,
    }


def mirror_properties(source: Step, target: Step) -> dict[str, str]:
    """MirrorMaker 2 copies the source's topic, and the positions of its group."""
    return {
        "clusters": "source,target",
        "source->target.enabled": "true",
        "source->target.topics": source.topic,
        "source->target.groups": source.group,
        "sync.topic.acls.enabled": "false",
        "source.bootstrap.servers": source.bootstrap,
        **prefixed("source.", java_properties(source)),
        "target.bootstrap.servers": target.bootstrap,
        **prefixed("target.", java_properties(target)),
    }
