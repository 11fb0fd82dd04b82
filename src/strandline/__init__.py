"""Strandline: an event store, and a data pipeline on top of it that delivers each row exactly once."""
