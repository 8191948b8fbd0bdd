"""Mechanisms of SASL: how clients, and other brokers, prove who they are."""
