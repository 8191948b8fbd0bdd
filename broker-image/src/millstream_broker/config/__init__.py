"""Configuration keys with Kafka's names, their types and rules, and the addresses in them."""
