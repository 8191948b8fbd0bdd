"""Kafka's protocol, and an asynchronous client of it: what the broker and the mirror workers share.

protocol/       messages to bytes and back, sans-IO
batch           record batches, as they go over the wire and stand on the disk
compression     their codecs
client/         connections to the brokers of a cluster
"""

__version__ = "0.1.0"
