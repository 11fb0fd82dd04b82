"""Streams of strands and of sinks, as values and folded: what is numbered, landed, delivered."""
