"""Clusters: plan, restarts, scaling and actions."""
