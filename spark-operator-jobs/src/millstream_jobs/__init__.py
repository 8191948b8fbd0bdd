"""PySpark batch loads: a range of a topic into a table."""

__version__ = "0.1.0"
