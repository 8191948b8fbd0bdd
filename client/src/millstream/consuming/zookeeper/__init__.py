"""Coordination among consumers themselves, in ZooKeeper: the Kafka paper's algorithm, without a coordinator."""
