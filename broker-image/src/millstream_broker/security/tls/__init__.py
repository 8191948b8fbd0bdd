"""TLS of listeners: certificates from Kafka's keys, contexts that are replaced at run time, principals of clients."""
