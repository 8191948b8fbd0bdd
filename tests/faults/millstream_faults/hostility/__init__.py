"""Hostile traffic: clients without credentials, and users who try everything beyond their rights."""
