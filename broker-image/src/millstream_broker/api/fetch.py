"""Fetch: read record batches, waiting up to `max_wait_ms` for `min_bytes`.

The same sessions (`fetch_sessions`), which have the rules, serve consumers and followers. Records are not read here:
the response refers to ranges of segment files, which the server sends with sendfile.
"""

from __future__ import annotations

from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.fetch import FetchRequest

from ..network.handlers import Answer, RequestContext, handler
from ..replication.fetch_session import CONSUMER
from ..replication.fetch_sessions import Sessions


@handler(fetch.API, ends_with_connection=True)
def handle(fetch_sessions: Sessions, context: RequestContext, request: FetchRequest) -> Answer:
    if context.version >= fetch.STATE_SINCE:
        request.replica_id = CONSUMER if request.replica_state is None else request.replica_state.replica_id
    return fetch_sessions.answer(request, context.session, context.connection_id, context.version)
