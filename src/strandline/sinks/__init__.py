"""Sinks: where rows go. `sink.py` is the protocol; `blob/` and `forward/` are the kinds that ship."""
