"""Changes of topics, settings and producer ids that clients request."""
