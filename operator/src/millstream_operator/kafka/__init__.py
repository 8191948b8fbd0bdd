"""The client of the brokers, with plain records in and out."""
