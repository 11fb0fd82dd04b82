"""Hosts over HTTP. Nothing is imported here: each needs the extra `server`."""
