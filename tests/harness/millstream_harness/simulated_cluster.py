"""A whole cluster without processes, sockets or clocks: every step is one event, in an order that a seed determines.

The deciding parts are real: the controller's machine, the leader's ISR and the rule for diverging logs. Everything
around them is simulated: ZooKeeper (versions, fencing, late or lost responses), the network (requests that
are lost, late, duplicated, or whose responses are lost), brokers with logs of (epoch, value) that crash with or without
losing data, and controllers that are deposed without knowing it. Every step checks what must never happen
(`Violation`), and `calm`, at the end, what must have happened once the cluster is left alone for a while.

`story` lists the events, for finding the cause of a failure.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from millstream_broker.controller import reassignment
from millstream_broker.controller.elections import enough
from millstream_broker.controller.messages import (
    ElectionRequested,
    ElectionType,
    ReassignmentRequested,
    ShutdownRequested,
    Tick,
)
from millstream_broker.controller.placement import place
from millstream_broker.coordination import BrokerRecord, PartitionRecord
from millstream_harness.simulated_broker import (
    Fetch,
    IsrWrite,
    SimulatedBroker,
    SimulatedLog,
    Violation,
)
from millstream_harness.simulated_controller import SimulatedController
from millstream_harness.simulated_tree import SimulatedTree
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest
from millstream_kafka.topic_partition import TopicPartition

Action = Callable[[], object]


class SimulatedCluster(SimulatedTree):
    """The whole cluster, and the possible next events."""

    def __init__(self, seed: int, *, brokers: int = 4, min_isr: int = 2) -> None:
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.trouble = self.rng.choice((0.1, 0.3, 1.0))
        self.min_isr = min_isr
        self.now_ms = 1_000_000
        self.values = iter(range(1, 10**9))
        # work in progress
        self.brokers = {number: SimulatedBroker(self, number) for number in range(1, brokers + 1)}
        self.fetches: list[Fetch] = []
        self.isr_writes: list[tuple[int, IsrWrite, PartitionRecord | None]] = []
        self.strays: list[tuple[int, Any]] = []
        self.cut: set[tuple[int, int]] = set()
        self.stopping: set[int] = set()
        self.is_calm = False
        for broker in self.brokers.values():
            self.start(broker)

    # Events

    @property
    def controller(self) -> SimulatedController | None:
        now = self.controller_epoch, self.history
        found = [one for one in self.controllers if (one.epoch, one.history) == now]
        return found[0] if found and not found[0].is_over and self.controller_id is not None else None

    def start(self, broker: SimulatedBroker) -> None:
        """A process starts; its registration replaces the previous one."""
        broker.is_up = True
        broker.incarnation += 1
        self.stopping.discard(broker.id)
        broker.epoch = next(self.values)
        broker.forget()
        broker.is_unclean = self.is_doubtful(broker)
        self.compare(broker)
        if not broker.is_unclean and not broker.ahead:
            self.rise(broker)
        self._register(broker)
        self.sessions.add(broker.id)
        if self.controller_id == broker.id:
            self.controller_id = None
        self.tells(f"{broker.id} starts, {'unclean, ' * broker.is_unclean}epoch {broker.epoch}")
        self.tell("brokers")

    def _register(self, broker: SimulatedBroker) -> None:
        self.registered[broker.id] = BrokerRecord(
            broker.id, (), None, broker.epoch, broker.is_unclean, ahead=broker.ahead
        )

    def crash(self, broker: SimulatedBroker, *, lose_memory: bool) -> None:
        broker.is_up = False
        broker.forget()
        self.controllers = [one for one in self.controllers if one.id != broker.id]
        for log in broker.logs.values():
            log.high_watermark = self.rng.randint(0, log.high_watermark)
            if lose_memory:
                log.truncate(self.rng.randint(0, log.end))
        if lose_memory:
            broker.generation = 0
        self.tells(f"{broker.id} crashes{' and loses its memory' * lose_memory}")

    def is_doubtful(self, broker: SimulatedBroker) -> bool:
        """Whether its disk cannot vouch for its logs (`millstream_broker.cluster.generations`)."""
        return broker.generation < max(1, self.generations.get(broker.id, 0))

    def compare(self, broker: SimulatedBroker) -> None:
        """Whether the tree has forgotten what the broker knows; no tree does here (`simulated_restores`)."""

    def accepted(self, broker: SimulatedBroker, epoch: int) -> None:
        """A live broker learns that the consequences of its registration, unclean or ahead, are stored."""
        if broker.is_up and broker.epoch == epoch:
            broker.is_unclean, broker.ahead = False, 0
            broker.generation = max(broker.generation, self.generations.get(broker.id, 0))
            self.rise(broker)

    def rise(self, broker: SimulatedBroker) -> None:
        broker.generation += 1
        if self.rng.random() < 0.9:  # otherwise it crashes in between
            self.generations[broker.id] = broker.generation

    def take_copy(self, broker: SimulatedBroker) -> None:
        broker.copy = broker.generation, {key: log.copy() for key, log in broker.logs.items()}
        self.tells(f"the disk of {broker.id} is copied, generation {broker.generation}")

    def restore(self, broker: SimulatedBroker) -> None:
        """The broker crashes, and the copy replaces its disk; topics deleted since are not restored."""
        self.crash(broker, lose_memory=False)
        generation, logs = broker.copy
        broker.generation = generation
        broker.logs = {key: log.copy() for key, log in logs.items() if key in broker.logs}
        self.tells(f"{broker.id} gets its disk of generation {generation} back")

    def may_lose_memory(self, broker: SimulatedBroker) -> bool:
        """Whether the cluster promises to survive it: other replicas are complete, and no other broker lost data."""
        if self.min_isr < 2:
            return False
        for other in self.brokers.values():
            record = self.registered.get(other.id)
            if self.is_doubtful(other) and (not other.is_up or record is None or record.unclean):
                return False
        records = [self.record(key) for key in self.states]
        return all(
            {*one.isr, *one.elr} - {broker.id} and enough(one, 2) == 2
            for one in records
            if broker.id in (*one.isr, *one.elr)
        )

    def expire(self, broker_id: int) -> None:
        """ZooKeeper ends the session; a running process does not know yet."""
        self.sessions.discard(broker_id)
        self._end_registration(broker_id, f"the session of {broker_id} expires")

    def process_ended(self, broker_id: int) -> None:
        """Another broker considers the process ended. If it lives, it continues writing and registers again."""
        self._end_registration(broker_id, f"the process of {broker_id} is taken for ended")

    def _end_registration(self, broker_id: int, why: str) -> None:
        del self.registered[broker_id]
        if self.controller_id == broker_id:
            self.controller_id = None
        self.tells(why)
        self.tell("brokers")

    def elect_controller(self) -> None:
        able = [one for one in self.registered if self.brokers[one].is_up]
        self.controller_id = self.rng.choice(able)
        self.controller_epoch += 1
        self.tells(f"{self.controller_id} is the controller in epoch {self.controller_epoch}")
        self.controllers.append(SimulatedController(self, self.controller_id, self.controller_epoch))

    def create_topic(self, partitions: int, factor: int) -> None:
        name = f"t{len(self.names)}"
        topic_id = uuid.UUID(int=self.rng.getrandbits(128))
        self.names[topic_id] = name
        replicas = place(self.registered, partitions, min(factor, len(self.registered)), self.rng)
        self.assignments[name] = (
            topic_id,
            {index: (tuple(one), (), ()) for index, one in enumerate(replicas)},
        )
        self.tells(f"{name} is created: {replicas}")
        self.tell("topics")

    def add_partition(self, name: str) -> None:
        partitions = self.assignments[name][1]
        replicas = place(self.registered, 1, min(3, len(self.registered)), self.rng)[0]
        partitions[len(partitions)] = (tuple(replicas), (), ())
        self.tells(f"{name} gets a partition on {replicas}")
        self.tell("topics")

    def deliver(self, broker_id: int, request: Any) -> bool:
        """Deliver a request; returns whether the broker accepted it and responded."""
        broker = self.brokers[broker_id]
        if not broker.is_up:
            return False
        if isinstance(request, UpdateMetadataRequest):
            return broker.update(request)
        return broker.stop(request)

    def step(self) -> None:
        """One random event."""
        actions = self._actions()
        action = self.rng.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        action()

    def _actions(self) -> list[tuple[float, Action]]:
        """Possible next events with their weights."""
        actions: list[tuple[float, Action]] = [(1, self._time_passes)]
        for controller in self.controllers:
            if not controller.is_over:
                actions += self._actions_of_controller(controller)
        if self.controller_id is None and any(self.brokers[one].is_up for one in self.registered):
            actions.append((2, self.elect_controller))
        for broker in self.brokers.values():
            actions += self._actions_of_broker(broker)
        if self.fetches:
            actions.append((4 * len(self.fetches), self._fetch))
        if self.isr_writes:
            actions.append((3 * len(self.isr_writes), self._isr_write))
        if self.strays:
            actions.append((1, self._stray))
        if not self.is_calm:
            actions += [(weight * self.trouble, one) for weight, one in self._troubles()]
        return actions

    def _actions_of_controller(self, controller: SimulatedController) -> Iterator[tuple[float, Action]]:
        if controller.news:
            yield 4, controller.report
        if controller.answer is not None:
            yield 8, partial(self._answered, controller)
        elif controller.writes:
            yield 8, controller.write
        for number, channel in list(controller.channels.items()):
            known = controller.machine.brokers.get(number)
            if known is None or known.epoch != channel.epoch:
                continue
            if channel.sent is not None:
                yield 4, partial(self._arrives, controller, number)
            elif channel.has_work:
                yield 4, partial(controller.send, number)
            elif channel.to_ask:
                yield 4, partial(controller.ask_log_ends, number)

    def _actions_of_broker(self, broker: SimulatedBroker) -> Iterator[tuple[float, Action]]:
        if not broker.is_up:
            yield 0.6, partial(self.start, broker)
            if broker.id in self.registered:
                yield 0.6, partial(self.expire, broker.id)
                yield 0.6, partial(self.process_ended, broker.id)
            return
        if broker.id not in self.registered:
            yield 0.6, partial(self._registers_again, broker)
        if follows := broker.follows():
            yield 6, lambda: self.fetches.append(broker.fetch(self.rng.choice(follows)))
        if broker.leads:
            leads = sorted(broker.leads)
            yield 2, lambda: self._proposes(broker, self.rng.choice(leads))
            if not self.is_calm:
                yield 3, lambda: broker.produce(self.rng.choice(leads))

    def _troubles(self) -> list[tuple[float, Action]]:
        rng = self.rng
        up = [one for one in self.brokers.values() if one.is_up]
        troubles: list[tuple[float, Action]] = [(0.2, self._cuts)]
        if up:
            broker = rng.choice(up)
            troubles.append((0.3, partial(self.crash, broker, lose_memory=False)))
            if self.may_lose_memory(broker):
                troubles.append((0.2, partial(self.crash, broker, lose_memory=True)))
                if 0 < broker.copy[0] < self.generations.get(broker.id, 0):
                    troubles.append((2.0, partial(self.restore, broker)))
            troubles.append((0.5, partial(self.take_copy, broker)))
            if not broker.is_unclean and not broker.ahead:
                troubles.append((0.3, partial(self.rise, broker)))
            if broker.id in self.registered:
                troubles.append((0.2, partial(self.expire, broker.id)))
                troubles.append((0.3, partial(self.process_ended, broker.id)))
        if self.registered and len(self.assignments) < 4:
            troubles.append((0.3, lambda: self.create_topic(rng.randint(1, 3), rng.randint(1, 3))))
        controller = self.controller
        if self.assignments and self.registered:
            name = rng.choice(list(self.assignments))
            if name not in self.deletions:
                troubles.append((0.05, partial(self._delete, name)))
                troubles.append((0.05, partial(self.add_partition, name)))
            if controller is not None:
                troubles.append((0.4, partial(self._administer, controller, name)))
                if up:
                    troubles.append((0.1, partial(self._shut_down, controller, rng.choice(up))))
        return troubles

    def _time_passes(self) -> None:
        self.now_ms += 10 if self.is_calm else self.rng.choice((1, 10, 10, 100, 100, 2000))
        for controller in self.controllers:
            if not controller.is_over:
                controller.handle(Tick(self.now_ms / 1000))

    def is_lost(self) -> bool:
        return not self.is_calm and self.rng.random() < 0.1 * self.trouble

    def _answered(self, controller: SimulatedController) -> None:
        event, controller.answer = controller.answer, None
        if self.is_lost():
            return  # and the write is repeated
        controller.writes.popleft()
        controller.handle(event)

    def _arrives(self, controller: SimulatedController, broker: int) -> None:
        request = controller.channels[broker].sent[0]
        if (controller.id, broker) in self.cut or self.is_lost():
            if self.rng.random() < 0.3:
                self.strays.append((broker, request))
            controller.settle(broker, False)
            return
        is_taken = self.deliver(broker, request)
        if request.controller_epoch < self.brokers[broker].controller_epoch:
            controller.is_over = True  # it gets STALE_CONTROLLER_EPOCH
            return
        # Earlier requests of this controller no longer arrive: it waits longer for a response than a session lasts.
        self.strays = [
            one
            for one in self.strays
            if (one[0], one[1].controller_epoch) != (broker, request.controller_epoch)
        ]
        controller.settle(broker, is_taken and not self.is_lost())

    def _stray(self) -> None:
        self.deliver(*self.strays.pop(self.rng.randrange(len(self.strays))))

    def _cuts(self) -> None:
        if self.cut and self.rng.random() < 0.7:
            self.cut.clear()
        else:
            self.cut.add((self.rng.choice(list(self.brokers)), self.rng.choice(list(self.brokers))))

    def _registers_again(self, broker: SimulatedBroker) -> None:
        """The process notices that its registration is gone and continues, if necessary in a new session."""
        self.sessions.add(broker.id)
        broker.epoch = next(self.values)
        broker.stopped.clear()
        self._register(broker)
        if self.rng.random() < 0.5:
            for controller in self.controllers:
                if controller.id == broker.id and controller.epoch == self.controller_epoch:
                    controller.is_over = True
        self.tells(f"{broker.id} registers again, epoch {broker.epoch}")
        self.tell("brokers")

    def _proposes(self, broker: SimulatedBroker, key: TopicPartition) -> None:
        if (write := broker.propose(key)) is not None:
            self.isr_writes.append((broker.id, write, None))

    def _isr_write(self) -> None:
        broker_id, write, stored = self.isr_writes.pop(self.rng.randrange(len(self.isr_writes)))
        broker = self.brokers[broker_id]
        if stored is None:
            if broker_id not in self.sessions or self.is_lost():
                write.isr.unknown()
                return
            known = broker.view.get(write.key)
            topic = self.assignments.get(write.key[0])
            if known is None or topic is None or topic[0] != known[0]:
                write.isr.unknown()
                return
            result = self.write_state(write.record.controller_epoch, write.key, write.record)
            if result is None:
                write.isr.unknown()
                return
            self.tell(write.key)
            if self.is_lost():
                write.isr.unknown()
            else:
                self.isr_writes.append((broker_id, write, result))
            return
        if broker.leads.get(write.key) is not write.isr:
            return
        mine = (stored.leader_epoch, stored.isr, stored.elr) == (
            write.record.leader_epoch,
            write.record.isr,
            write.record.elr,
        )
        (write.isr.written if mine else write.isr.conflicted)(stored)
        broker.advance(write.key)

    def raise_epoch(self, broker_id: int, key: TopicPartition, record: PartitionRecord) -> None:
        """A leader whose log has higher epochs than its own, of an earlier history, takes a higher one."""
        known, topic = self.brokers[broker_id].view[key][0], self.assignments.get(key[0])
        if broker_id in self.sessions and topic is not None and topic[0] == known and not self.is_lost():
            self.write_state(record.controller_epoch, key, record)
            self.tell(key)

    def _fetch(self) -> None:
        fetch = self.fetches.pop(self.rng.randrange(len(self.fetches)))
        if self.is_lost():
            return
        if fetch.answer is not None:
            self.brokers[fetch.follower].fetched(fetch)
            return
        leader = self.brokers[fetch.leader]
        if leader.is_up and leader.answer(fetch):
            self.fetches.append(fetch)

    def _delete(self, name: str) -> None:
        self.ended.add(self.assignments[name][0])
        self.deletions.add(name)
        self.tells(f"{name} is to be deleted")
        self.tell("deletions")

    def _administer(self, controller: SimulatedController, name: str) -> None:
        index = self.rng.choice(list(self.assignments[name][1]))
        key, choice = (name, index), self.rng.random()
        if choice < 0.3:
            self.tells(f"the preferred leader of {name}-{index} is to be elected")
            controller.ask(lambda caller: ElectionRequested(caller, ElectionType.PREFERRED, [key]))
        elif choice < 0.4:
            controller.ask(lambda caller: ElectionRequested(caller, ElectionType.PREFERRED, None))
        elif choice < 0.6:
            self.tells(f"the reassignment of {name}-{index} is cancelled")
            controller.ask(lambda caller: ReassignmentRequested(caller, {key: None}))
        else:
            alive = list(self.registered)
            fewest = min(
                self.min_isr, 2, len(alive)
            )  # fewer would make fewer enough, while one has lost data
            target = tuple(self.rng.sample(alive, self.rng.randint(fewest, min(3, len(alive)))))
            self.tells(f"{name}-{index} is to move to {target}")
            controller.ask(lambda caller: ReassignmentRequested(caller, {key: target}))

    def _shut_down(self, controller: SimulatedController, broker: SimulatedBroker) -> None:
        self.tells(f"{broker.id} wants to stop")
        self.stopping.add(broker.id)
        controller.ask(lambda caller: ShutdownRequested(caller, broker.id, broker.epoch))

    # Calm at the end

    def calm(self, steps: int = 400) -> None:
        """End all faults and let the cluster settle; then check liveness."""
        self.is_calm = True
        self.cut.clear()
        self.tells("calm")
        for broker in self.brokers.values():
            if not broker.is_up:
                self.start(broker)
            elif broker.id in self.stopping:
                self.start(broker)  # it has stopped, as requested
        for _ in range(steps):
            for _ in range(50):
                self.step()
            if not self.unfinished():
                break
        else:
            raise Violation("not finished in peace: " + "; ".join(self.unfinished()))
        self._check_end()

    def unfinished(self) -> list[str]:
        """Outstanding conditions."""
        controller = self.controller
        if controller is None:
            return ["no controller"]
        left = []
        if self.deletions:
            left.append(f"deletions {self.deletions}")
        if controller.asked - set(controller.replies):
            left.append("requests without a reply")
        for key in [(name, index) for name, (_, every) in self.assignments.items() for index in every]:
            record = self.record(key)
            leaving = controller.machine.leaving
            if record.leader not in self.registered:
                left.append(f"{key} has no leader: {record}")
            elif reassignment.is_moving(record) or record.removing:
                left.append(f"{key} is moving: {record}")
            elif {*record.replicas} - leaving > {*record.isr}:
                left.append(f"{key} is not in sync: {record}")
        return left

    def _check_end(self) -> None:
        for name, (topic_id, partitions) in self.assignments.items():
            for index in partitions:
                record = self.record((name, index))
                log = self.brokers[record.leader].logs.get((topic_id, index)) or SimulatedLog()
                of = topic_id, index
                for offset, value in sorted(self.acked[of].items()):
                    is_there = offset < log.end and log.records[offset][1] == value
                    if not is_there and offset in self.acked[of] and not self.is_stray(of, offset):
                        raise Violation(f"{name}-{index}: the acknowledged {value} at {offset} is lost")
                for offset, one in sorted(self.truth[of].items()):
                    is_there = offset < log.end and log.records[offset] == one
                    if not is_there and offset in self.truth[of] and not self.is_stray(of, offset):
                        raise Violation(f"{name}-{index}: the committed {one} at {offset} is lost")
