"""The configuration file of a mirror worker."""
