"""The clients of one source's mirror: a connection serves one request at a time, so long requests have clients of their
own."""

from __future__ import annotations

from dataclasses import dataclass, fields

from millstream_kafka.client import ClusterClient, Security

from ..config.config import MirrorConfig, Source

CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of both clusters, by what they are for."""

    source: ClusterClient
    """Short requests to the source."""
    fetching: ClusterClient
    """Long polls for records of the source."""
    comparing: ClusterClient
    """Reads of whole batches of the source."""
    source_groups: ClusterClient
    """Consumer groups of the source."""
    target: ClusterClient
    """Short requests to the target."""
    producing: ClusterClient
    """Records for the target."""
    joining: ClusterClient
    """The membership in the workers' group, in the target: JoinGroup waits for all members."""
    target_groups: ClusterClient
    """Consumer groups of the target."""

    async def close(self) -> None:
        for field in fields(self):
            await getattr(self, field.name).close()


def connect(config: MirrorConfig, source: Source) -> Clients:
    """Clients that connect once they are used."""
    client_id = f"millstream-mirror-{config.name}"

    def client(bootstrap: str, security: Security | None) -> ClusterClient:
        return ClusterClient(
            bootstrap,
            client_id,
            timeout=CONNECT_TIMEOUT_S * 2,
            connect_timeout=CONNECT_TIMEOUT_S,
            security=security,
        )

    of_source = [client(source.bootstrap, source.security) for _ in range(4)]
    of_target = [client(config.target, config.target_security) for _ in range(4)]
    return Clients(*of_source, *of_target)
