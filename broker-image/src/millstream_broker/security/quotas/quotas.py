"""The quotas of one broker's clients.

Without any quota nothing is measured: `is_active` is False. With one, a client's use is recorded from then on, for the
kinds of quotas that it has a limit of. Brokers of this cluster have no quotas.

A quota limits what a client uses of this broker. Requests are never refused for it: the response says how long to wait
(`throttle_time_ms`), and the connection is not read meanwhile (KIP-219). The throttle time is the time after which the
rate would be back at the limit, however long that is for bytes; for requests it is at most one window. Only mutations
of topics are refused, to clients that know the error (`mutations`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ...coordination.entities import MAX_PATH_BYTES, Entity
from ..session import ClientSession
from .keys import ALL, CONNECTION, FETCH, MUTATION, PRODUCE, REQUEST, parse
from .limits import Limits, SensorKey
from .rates import MutationTokens, SampledRate, Windows
from .sensors import Sensor, Sensors

LONGEST_NAME = MAX_PATH_BYTES
"""Client ids that differ only beyond this are counted together; none that long has a quota of its own."""

M = TypeVar("M", SampledRate, MutationTokens)


class Use(NamedTuple):
    """What those have used who are counted together, for metrics."""

    quota: str
    user: str
    client_id: str
    limit: float
    rate: float | None
    """None for mutations, whose tokens are counted instead."""
    throttled: int
    throttled_ms: int


class _Kind(Generic[M]):
    """One kind of quota: its limits, and the use of those who have one."""

    __slots__ = ("limits", "sensors")

    def __init__(self, sensors: Sensors[SensorKey, M]) -> None:
        self.limits = Limits()
        self.sensors: Sensors[SensorKey, M] = sensors

    def find(
        self, session: ClientSession, client_id: str | None, now_ms: int
    ) -> tuple[Sensor[M], float] | None:
        """A client's sensor and limit; None if it has no limit."""
        if not self.limits:
            return None
        found = self.limits.of_client(user_of(session), client_id or "")
        if found is None:
            return None
        key, limit = found
        if key.client_id is not None and len(key.client_id) > LONGEST_NAME:
            key = key._replace(client_id=key.client_id[:LONGEST_NAME])
        return self.sensors.get(key, now_ms), limit


class RateQuota(_Kind[SampledRate]):
    """A quota for a rate."""

    __slots__ = ("_longest_ms", "_windows")

    def __init__(self, windows: Windows, longest_ms: int | None = None) -> None:
        """`longest_ms` limits throttle times."""
        super().__init__(Sensors(lambda: SampledRate(windows)))
        self._windows = windows
        self._longest_ms = longest_ms

    def record(self, session: ClientSession, client_id: str | None, amount: float, now_ms: int) -> int:
        """Add to a client's use; returns its throttle time in milliseconds."""
        found = self.find(session, client_id, now_ms)
        if found is None:
            return 0
        sensor, limit = found
        sensor.measure.record(amount, now_ms)
        throttle_ms = sensor.measure.throttle_ms(limit, now_ms)
        if self._longest_ms is not None:
            throttle_ms = min(throttle_ms, self._longest_ms)
        return sensor.throttle(throttle_ms)

    def take_back(self, session: ClientSession, client_id: str | None, amount: float, now_ms: int) -> None:
        """Subtract what was recorded for a response that is not sent."""
        if (found := self.find(session, client_id, now_ms)) is not None:
            found[0].measure.record(-amount, now_ms)

    def is_unused(self, session: ClientSession, client_id: str | None, now_ms: int) -> bool:
        """Whether a client has a limit, and no use of late."""
        found = self.find(session, client_id, now_ms)
        return found is not None and found[0].measure.measure(now_ms)[0] <= 0

    def most(self, session: ClientSession, client_id: str | None) -> float | None:
        """The amount that may pass at once after a pause; None: any."""
        found = self.limits.of_client(user_of(session), client_id or "")
        return None if found is None else found[1] * self._windows.full_seconds


class MutationQuota(_Kind[MutationTokens]):
    """The quota for created and deleted partitions."""

    __slots__ = ()

    def __init__(self, windows: Windows) -> None:
        super().__init__(Sensors(lambda: MutationTokens(windows)))


class Quotas:
    """All quotas, by what is in coordination."""

    def __init__(
        self, windows: Windows, controller_windows: Windows, now_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self.now_ms = now_ms
        """The clock of whoever records: milliseconds that do not go back."""
        self.is_active = False
        """Whether any user or client id has a quota."""
        self.version = 0
        """Grows with each change."""
        self.produce = RateQuota(windows)
        self.fetch = RateQuota(windows)
        self.request = RateQuota(windows, longest_ms=windows.size_ms)
        self.mutation = MutationQuota(controller_windows)
        self.connections = Limits()
        """Of addresses."""
        self._limits: dict[str, Limits] = {
            PRODUCE: self.produce.limits,
            FETCH: self.fetch.limits,
            REQUEST: self.request.limits,
            MUTATION: self.mutation.limits,
            CONNECTION: self.connections,
        }

    def update(self, entity: Entity, config: Mapping[str, str]) -> list[str]:
        """Take over an entity's stored configuration; returns the problems of values that are left out."""
        problems = []
        for key in ALL:
            value = None
            if (text := config.get(key)) is not None and (entity.ip is not None) == (key == CONNECTION):
                try:
                    value = parse(text)
                except ValueError as error:
                    problems.append(f"{key}={error}")
            self._limits[key].set(entity, value)
        self.is_active = any(limits for key, limits in self._limits.items() if key != CONNECTION)
        self.version += 1
        return problems

    def uses(self, now_ms: int) -> Iterator[Use]:
        """Those who have a limit and have used the broker lately."""
        rates = (PRODUCE, self.produce), (FETCH, self.fetch), (REQUEST, self.request)
        for name, quota in rates:
            quota.sensors.expire(now_ms)
            for key, sensor in quota.sensors:
                if (limit := quota.limits.of_sensor(key)) is None:
                    quota.sensors.forget(key)
                else:
                    yield _use(name, key, sensor, limit, sensor.measure.measure(now_ms)[0])
        self.mutation.sensors.expire(now_ms)
        for key, bucket in self.mutation.sensors:
            if (limit := self.mutation.limits.of_sensor(key)) is None:
                self.mutation.sensors.forget(key)
            else:
                yield _use(MUTATION, key, bucket, limit, None)


def user_of(session: ClientSession) -> str:
    """The name that quotas know a client by: that of its principal, whatever its type."""
    return session.principal.partition(":")[2]


def _use(name: str, key: SensorKey, sensor: Sensor[M], limit: float, rate: float | None) -> Use:
    return Use(name, key.user or "", key.client_id or "", limit, rate, sensor.throttled, sensor.throttled_ms)
