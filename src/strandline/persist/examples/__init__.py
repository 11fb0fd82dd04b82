"""Worked examples of the event store. They are shipped, and certified on every backend."""
