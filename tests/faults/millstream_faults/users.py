"""The secured half of a run: users, their passwords and rules, and what their clients need to log in.

Half of the clients use a listener with TLS and SCRAM, each as a user of its own with rules for the run's topics alone.
PROBER is a user that the faults change: it may use GUARDED, until they take its rights, and never PRIVATE, whose only
record nobody without a right may read.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from millstream_harness.wire import produce_request, record
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.batch import build_batch
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.client.security import Credential, Sasl, Security, Tls
from millstream_kafka.protocol import (
    alter_client_quotas,
    create_topics,
    delete_acls,
    describe_client_quotas,
    list_offsets,
    produce,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .secured import MECHANISM, Secured, allow, replace, set_passwords
from .topics import ANEW, COMPACTED, STEADY

T = TypeVar("T")

SECURED = "SECURED"
"""The listener."""
SECURED_CLIENTS = ("writer-2", "writer-3", "writer-5", "group-2", "rereader", "position-1")
PROBER, STRANGER = "prober", "stranger"
GUARDED, PRIVATE = "guarded", "private"
VALUE = "only for those who may"
ENVIRONMENT = "MILLSTREAM_FAULTS_LOGIN"
PATIENCE_S = 240.0
"""Limit for what an administrator repeats: ZooKeeper may be away, and the machine busy. No promise."""
PAUSE_S = 0.2
TIMEOUT_S = 10.0


class Login(NamedTuple):
    """How a client of the run logs in: a user, the file of its password, and the authorities that it trusts."""

    user: str
    password: str
    trusted: str
    """A file that follows the brokers'."""
    authorities: str
    """A file with every authority of the run, for clients that read it once."""

    @classmethod
    def of_environment(cls) -> Self | None:
        text = os.environ.get(ENVIRONMENT)
        return None if text is None else cls(*json.loads(text))

    @property
    def security(self) -> Security:
        """Reads its files for each connection."""
        user = Credential("user", "the run", value=self.user)
        password = Credential("password", "the run", path=Path(self.password))
        tls = Tls([Credential("trusted", "the run", path=Path(self.trusted))])
        return Security(tls, Sasl(MECHANISM.label, user, password))

    @property
    def librdkafka(self) -> Mapping[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authorities,
            "sasl.mechanism": MECHANISM.label,
            "sasl.username": self.user,
            "sasl.password": Path(self.password).read_text(),
        }

    @property
    def aiokafka(self) -> Mapping[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.authorities),
            "sasl_mechanism": MECHANISM.label,
            "sasl_plain_username": self.user,
            "sasl_plain_password": Path(self.password).read_text(),
        }


class Users:
    """Thread-safe. The administrator of users, rules and quotas, who uses the listener in plain text."""

    def __init__(self, bootstrap: str, secured_bootstrap: str, secured: Secured) -> None:
        self.bootstrap = bootstrap
        self.secured_bootstrap = secured_bootstrap
        self.secured = secured
        self.may_use = True
        """Whether PROBER should have its rights."""
        self.changed_at = time.monotonic()
        """When that changed last, or began to."""
        self.changing = threading.Lock()
        """Held while passwords or rules change."""
        for user in (*SECURED_CLIENTS, PROBER, STRANGER):
            replace(self._password(user), secrets.token_hex(12))

    def _password(self, user: str) -> Path:
        return self.secured.folder / f"{user}.password"

    def login(self, user: str) -> Login:
        folder = self.secured.folder
        return Login(
            user, str(self._password(user)), str(self.secured.trusted), str(folder / "authorities.pem")
        )

    def environment(self, user: str) -> Mapping[str, str]:
        return {ENVIRONMENT: json.dumps(self.login(user))}

    def run(self, what: str, attempt: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """As the administrator, until it works. Raises RuntimeError."""

        async def ask() -> T:
            deadline = time.monotonic() + PATIENCE_S
            async with ClusterClient(
                self.bootstrap, "users", timeout=TIMEOUT_S, connect_timeout=1.0
            ) as client:
                while True:
                    try:
                        return await attempt(client)
                    except (ApiError, BrokerError) as error:
                        if time.monotonic() > deadline:
                            raise RuntimeError(f"could not {what} in {PATIENCE_S:g} s: {error}") from None
                        client.forget_leaders()
                    await asyncio.sleep(PAUSE_S)

        return asyncio.run(ask())

    def prepare(self) -> None:
        """Topics, passwords and rules, as they should be: at the start, and after a tree was restored."""
        self.run("create topics", self._create)
        self.run("write what is private", self._write)
        passwords = {user: self._password(user).read_text() for user in (*SECURED_CLIENTS, PROBER, STRANGER)}
        self.run("set passwords", lambda client: set_passwords(client, passwords))

        async def rules(client: ClusterClient) -> None:
            for user in SECURED_CLIENTS:
                for topic in (STEADY, ANEW, COMPACTED):
                    await allow(
                        client, user, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.WRITE
                    )
                await allow(client, user, ResourceType.GROUP, "*", AclOperation.READ)

        self.run("allow the clients", rules)
        self.unthrottle()
        if self.may_use:
            self.grant()
        else:
            self.revoke()

    async def _create(self, client: ClusterClient) -> None:
        wanted = [create_topics.CreatableTopic(name, 1, 3) for name in (GUARDED, PRIVATE)]
        request = create_topics.CreateTopicsRequest(wanted, 5000)
        answer = await client.call_controller(create_topics.API, request)
        for topic in answer.topics:
            if topic.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise ApiError(ErrorCode.of(topic.error_code), topic.error_message or "")

    async def _write(self, client: ClusterClient) -> None:
        if await self._end(client):
            return
        request = produce_request(PRIVATE, build_batch([record(VALUE)]), acks=-1)
        answer = await client.call_leader(PRIVATE, 0, produce.BY_NAME, request)
        if code := answer.responses[0].partition_responses[0].error_code:
            raise ApiError(ErrorCode.of(code))

    async def _end(self, client: ClusterClient) -> int:
        wanted = [list_offsets.ListOffsetsTopic(PRIVATE, [list_offsets.ListOffsetsPartition(0, -1, -1)])]
        request = list_offsets.ListOffsetsRequest(-1, 0, wanted)
        found = (await client.call_leader(PRIVATE, 0, list_offsets.API, request)).topics[0].partitions[0]
        if found.error_code:
            raise ApiError(ErrorCode.of(found.error_code))
        offset: int = found.offset
        return offset

    def check_private(self) -> None:
        """Nobody but the administrator has written there. Raises RuntimeError."""
        end = self.run("find the end of what is private", self._end)
        if end > 2:  # one at the start, perhaps repeated
            raise RuntimeError(f"{PRIVATE} has {end} records")

    # What faults change

    def grant(self) -> None:
        operations = AclOperation.READ, AclOperation.WRITE
        self.may_use, self.changed_at = True, time.monotonic()
        self.run("grant", lambda client: allow(client, PROBER, ResourceType.TOPIC, GUARDED, *operations))
        self.changed_at = time.monotonic()

    def revoke(self) -> None:
        every = delete_acls.DeleteAclsFilter(
            1, None, PatternType.ANY, f"User:{PROBER}", None, 1, PermissionType.ANY
        )

        async def delete(client: ClusterClient) -> None:
            answer = await client.call_any(delete_acls.API, delete_acls.DeleteAclsRequest([every]))
            if code := answer.filter_results[0].error_code:
                raise ApiError(ErrorCode.of(code), answer.filter_results[0].error_message or "")

        self.may_use, self.changed_at = False, time.monotonic()
        self.run("revoke", delete)
        self.changed_at = time.monotonic()

    def change_password(self, user: str) -> str:
        """Set a new one; return the old one. Clients that read its file get it after the brokers."""
        old, new = self._password(user).read_text(), secrets.token_hex(12)
        self.run("change a password", lambda client: set_passwords(client, {user: new}))
        replace(self._password(user), new)
        return old

    def throttle(self, user: str, rate: float | None) -> None:
        """Limit what a user writes, in bytes a second; None: no longer."""
        op = alter_client_quotas.QuotaOperation("producer_byte_rate", rate or 0.0, rate is None)
        entity = [describe_client_quotas.QuotaEntity("user", user)]
        request = alter_client_quotas.AlterClientQuotasRequest(
            [alter_client_quotas.QuotaAlteration(entity, [op])], False
        )

        async def alter(client: ClusterClient) -> None:
            answer = await client.call_any(alter_client_quotas.API, request)
            if code := answer.entries[0].error_code:
                raise ApiError(ErrorCode.of(code), answer.entries[0].error_message or "")

        self.run("set a quota", alter)

    def unthrottle(self) -> None:
        for user in (PROBER, "writer-2"):
            self.throttle(user, None)
