"""Sinks: where rows go. `sink.py` says what one is; each other room holds one kind, or what kinds share."""
