"""Consumer groups: the coordinator (sans-IO), Kafka's records of it, and the driver that stores and loads them."""
