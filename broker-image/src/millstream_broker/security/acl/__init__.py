"""Who may do what: Kafka's access rules."""
