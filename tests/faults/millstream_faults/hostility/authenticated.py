"""What users do who have logged in: MALLORY tries everything beyond one topic, and floods; CLERK, who may administer
users, rules and quotas, sends absurd ones, and thousands of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millstream_harness.wire import produce_request, record
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.client.scram import ScramClient
from millstream_kafka.protocol import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    describe_acls,
    describe_client_quotas,
    fetch,
    init_producer_id,
    join_group,
    metadata,
    produce,
    sasl_authenticate,
    sasl_handshake,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest

from ..secured import upsertion
from .lab import ABSURD, CLERK, MALLORY, OWN, SECRET, Lab
from .messages import any_frame, frame
from .unauthenticated import Outcome, Target, Tls, Wire, context

MOST_UNREAD = 2000
AT_ONCE = 100
"""Rules or users in a request, and requests of a flood."""
MOST_ABSURD = 4000
"""Rules and users that are created at most: the run is about thousands, not about the disk of ZooKeeper."""
TEXTS = (
    "",
    "*",
    "User:*",
    "User:",
    ":",
    "User:a\n\x00",
    "x" * 30_000,
    "ü" * 3000,
    "..",
    "/",
    "User:<default>",
    "😀" * 50,
)
NUMBERS = (-128, -1, 0, 1, 2, 3, 4, 12, 13, 14, 127)
VALUES = (0.0, -1.0, 1e-300, 1e308, float("nan"), float("inf"), 0.5, 2.0**63)


class Authenticated:
    """Attacks by users of a cluster; equal seeds give equal ones."""

    def __init__(self, lab: Lab, drawn: random.Random) -> None:
        self.lab = lab
        self.drawn = drawn

    async def attack(self) -> tuple[str, Outcome]:
        name = self.drawn.choice(list(_KINDS))
        try:
            return name, await asyncio.wait_for(_KINDS[name](self), 60.0)
        except BrokerError as error:
            return name, Outcome(type(error).__name__)
        except (OSError, TimeoutError) as error:
            return name, Outcome(type(error).__name__)

    def address(self) -> Target:
        return Target("SECURE", self.drawn.choice(list(self.lab.cluster.ports.values()))["SECURE"])

    async def connection(self, user: str) -> Connection:
        tls, login = await asyncio.to_thread(self.lab.secured.user(user, self.lab.passwords[user]).load)
        return await Connection.open(
            "127.0.0.1",
            self.address().port,
            f"hostile-{self.drawn.randrange(1000)}",
            timeout=20.0,
            ssl=tls,
            login=login,
        )

    # A user with few rights

    async def everything(self) -> Outcome:
        """Requests with any content to every API, over a connection that has logged in; bytes as they come."""
        drawn = self.drawn
        async with Wire(drawn, self.address()) as wire:
            tls = Tls(wire, context())
            await tls.shake()
            await self._log_in(tls)
            start = len(tls.decrypted)
            for _ in range(drawn.randint(1, 5)):
                _, data = any_frame(drawn, (produce.API,))
                with contextlib.suppress(TimeoutError):
                    await tls.send(data)
                    if not await tls.receive():
                        break
            return Outcome("tried", bytes(tls.decrypted[start:]))

    async def _log_in(self, tls: Tls) -> None:
        client = ScramClient("SCRAM-SHA-512", MALLORY, self.lab.passwords[MALLORY])
        await tls.send(frame(sasl_handshake.API, 1, SaslHandshakeRequest("SCRAM-SHA-512")))
        await _received(tls)
        await tls.send(frame(sasl_authenticate.API, 1, SaslAuthenticateRequest(client.first())))
        found = sasl_authenticate.API.decode_response(1, await _received(tls), 4)
        await tls.send(
            frame(sasl_authenticate.API, 1, SaslAuthenticateRequest(client.final(bytes(found.auth_bytes))))
        )
        found = sasl_authenticate.API.decode_response(1, await _received(tls), 4)
        client.verify(bytes(found.auth_bytes))

    async def never_reads(self) -> Outcome:
        """Requests with large responses, of which it takes none, until the broker takes no more requests."""
        async with Wire(self.drawn, self.address()) as wire:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            tls = Tls(wire, context())
            await tls.shake()
            await self._log_in(tls)
            api, request = self._metadata()
            data = frame(api, api.served[1], request)
            try:
                for _ in range(MOST_UNREAD):
                    await tls.send(data)
            except TimeoutError:
                return Outcome("not read any more")
            return Outcome("all read")

    async def forbidden(self) -> Outcome:
        """Read and write a topic without the right, also by guessed fetch sessions."""
        connection = await self.connection(MALLORY)
        try:
            wrote = await connection.call(
                produce.BY_NAME, None, produce_request(SECRET, build_batch([record("of mallory")]), acks=-1)
            )
            is_served = not wrote.responses[0].partition_responses[0].error_code
            session = self.drawn.choice((0, 0, self.drawn.randrange(1, 1 << 31)))
            wanted = [
                fetch.FetchTopic(
                    SECRET, partitions=[fetch.FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)]
                )
            ]
            request = fetch.FetchRequest(
                max_wait_ms=10,
                max_bytes=1 << 20,
                session_id=session,
                session_epoch=int(bool(session)),
                topics=wanted,
            )
            found = await connection.call(fetch.BY_NAME, None, request)
            data = [part for topic in found.responses for part in topic.partitions]
            is_served |= any(not part.error_code or len(part.records or b"") for part in data)
            everything = await connection.call(metadata.API, None, metadata.MetadataRequest(None))
            names = ",".join(topic.name or "" for topic in everything.topics)
            return Outcome("served" if is_served else "refused", names.encode(), is_served)
        finally:
            await connection.close()

    async def flood(self) -> Outcome:
        """As many requests as one connection takes, in a burst."""
        connection = await self.connection(MALLORY)
        try:
            asked = self.drawn.choice(
                (self._produce, self._metadata, self._producer_ids, self._sessions, self._join)
            )
            api, request = asked()
            calls = (connection.call(api, None, request, timeout=10.0) for _ in range(AT_ONCE))
            found = await asyncio.gather(*calls, return_exceptions=True)
            answered = sum(not isinstance(each, BaseException) for each in found)
            return Outcome(f"{api.name} {'answered' if answered == AT_ONCE else 'throttled'}")
        finally:
            await connection.close()

    def _produce(self) -> tuple[Any, Any]:
        batch = build_batch([record(self.drawn.randbytes(20_000))])
        return produce.BY_NAME, produce_request(OWN, batch, partition=self.drawn.randrange(3), acks=1)

    def _metadata(self) -> tuple[Any, Any]:
        names = [metadata.MetadataRequestTopic(name=f"{OWN}{number}") for number in range(300)]
        return metadata.API, metadata.MetadataRequest(names)

    def _producer_ids(self) -> tuple[Any, Any]:
        return init_producer_id.API, init_producer_id.InitProducerIdRequest(None, 60_000)

    def _sessions(self) -> tuple[Any, Any]:
        wanted = [fetch.FetchPartition(number, -1, 0, partition_max_bytes=100) for number in range(3)]
        request = fetch.FetchRequest(
            max_wait_ms=0, max_bytes=100, session_epoch=0, topics=[fetch.FetchTopic(OWN, partitions=wanted)]
        )
        return fetch.BY_NAME, request

    def _join(self) -> tuple[Any, Any]:
        protocols = [join_group.JoinGroupRequestProtocol("range", self.drawn.randbytes(1000))]
        request = join_group.JoinGroupRequest(OWN, 6000, 6000, "", None, "consumer", protocols)
        return join_group.API, request

    # An administrator of users, rules and quotas

    async def absurd_rules(self) -> Outcome:
        drawn = self.drawn
        creations = [
            create_acls.AclCreation(
                drawn.choice(NUMBERS),
                drawn.choice((*TEXTS, SECRET)),
                drawn.choice(NUMBERS),
                drawn.choice((f"User:{ABSURD}{drawn.choice(TEXTS)}", f"{ABSURD}:x", ABSURD)),
                drawn.choice(TEXTS),
                drawn.choice(NUMBERS),
                drawn.choice(NUMBERS),
            )
            for _ in range(drawn.randint(1, 20))
        ]
        return await self._administer(create_acls.API, create_acls.CreateAclsRequest(creations))

    async def many_rules(self) -> Outcome:
        if self.lab.absurd >= MOST_ABSURD:
            return Outcome("enough")
        self.lab.absurd += AT_ONCE
        kind = self.drawn.choice((PatternType.LITERAL, PatternType.PREFIXED))
        creations = [
            create_acls.AclCreation(
                ResourceType.TOPIC,
                f"{ABSURD}-{self.drawn.randrange(10**6)}",
                kind,
                f"User:{ABSURD}{self.drawn.randrange(20)}",
                "*",
                AclOperation.READ,
                PermissionType.ALLOW,
            )
            for _ in range(AT_ONCE)
        ]
        return await self._administer(create_acls.API, create_acls.CreateAclsRequest(creations))

    async def many_users(self) -> Outcome:
        if self.lab.absurd >= MOST_ABSURD:
            return Outcome("enough")
        self.lab.absurd += AT_ONCE
        name = f"{ABSURD}-{self.drawn.randrange(10**6)}"
        template = upsertion(name, "x")
        users = [
            alter_user_scram_credentials.ScramCredentialUpsertion(
                f"{name}-{number}",
                template.mechanism,
                template.iterations,
                template.salt,
                template.salted_password,
            )
            for number in range(AT_ONCE)
        ]
        request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=users)
        return await self._administer(alter_user_scram_credentials.API, request)

    async def absurd_users(self) -> Outcome:
        drawn = self.drawn
        users = [
            alter_user_scram_credentials.ScramCredentialUpsertion(
                ABSURD + drawn.choice(TEXTS),
                drawn.choice(NUMBERS),
                drawn.choice((-1, 0, 4096, 16384, 2**31 - 1)),
                drawn.randbytes(drawn.choice((0, 1, 1024, 5000))),
                drawn.randbytes(drawn.choice((0, 1, 64, 5000))),
            )
            for _ in range(drawn.randint(1, 20))
        ]
        deletions = [
            alter_user_scram_credentials.ScramCredentialDeletion(
                ABSURD + drawn.choice(TEXTS), drawn.choice(NUMBERS)
            )
        ]
        request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions, users)
        return await self._administer(alter_user_scram_credentials.API, request)

    async def absurd_quotas(self) -> Outcome:
        drawn = self.drawn
        keys = (
            "producer_byte_rate",
            "consumer_byte_rate",
            "request_percentage",
            "connection_creation_rate",
            "",
            "x",
        )
        alterations = []
        for _ in range(drawn.randint(1, 10)):
            kinds = drawn.sample(("user", "client-id", "ip", "", "group"), drawn.choice((1, 1, 2)))
            entity = [
                describe_client_quotas.QuotaEntity(kind, ABSURD + drawn.choice(TEXTS)) for kind in kinds
            ]
            ops = [
                alter_client_quotas.QuotaOperation(
                    drawn.choice(keys), drawn.choice(VALUES), drawn.random() < 0.2
                )
                for _ in range(drawn.randint(0, 4))
            ]
            alterations.append(alter_client_quotas.QuotaAlteration(entity, ops))
        request = alter_client_quotas.AlterClientQuotasRequest(alterations, drawn.random() < 0.2)
        return await self._administer(alter_client_quotas.API, request)

    async def absurd_filters(self) -> Outcome:
        drawn = self.drawn
        text: Callable[[], str | None] = lambda: drawn.choice((None, *TEXTS))  # noqa: E731
        request = describe_acls.DescribeAclsRequest(
            drawn.choice(NUMBERS), text(), drawn.choice(NUMBERS), text(), text(), *drawn.choices(NUMBERS, k=2)
        )
        return await self._administer(describe_acls.API, request)

    async def _administer(self, api: Any, request: Any) -> Outcome:
        connection = await self.connection(CLERK)
        try:
            found = await connection.call(api, None, request, timeout=50.0)
        finally:
            await connection.close()
        results = getattr(found, "results", None) or getattr(found, "entries", None) or ()
        codes = {each.error_code for each in results} | {getattr(found, "error_code", 0)}
        unknown = codes & {int(ErrorCode.UNKNOWN_SERVER_ERROR), int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}
        return Outcome("failed" if unknown else "answered", repr(found).encode())


async def _received(tls: Tls) -> bytes:
    """A frame without its size. Raises OSError at the end, TimeoutError."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        if not (found := await tls.receive()):
            raise ConnectionResetError("closed")
        data += found
    return data[4:]


_KINDS: Mapping[str, Callable[[Authenticated], Awaitable[Outcome]]] = {
    "tries everything": Authenticated.everything,
    "tries what is forbidden": Authenticated.forbidden,
    "floods": Authenticated.flood,
    "never reads": Authenticated.never_reads,
    "absurd rules": Authenticated.absurd_rules,
    "many rules": Authenticated.many_rules,
    "absurd users": Authenticated.absurd_users,
    "many users": Authenticated.many_users,
    "absurd quotas": Authenticated.absurd_quotas,
    "absurd filters": Authenticated.absurd_filters,
}
OF_CLERK = {name for name in _KINDS if name.startswith(("absurd", "many"))}
"""Kinds whose user may see users and rules."""
