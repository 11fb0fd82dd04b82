"""Delivery: what a sink is owed, what is under way, what is done. Sinks are in strandline.sinks."""
