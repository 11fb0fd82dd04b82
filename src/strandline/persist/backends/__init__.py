"""The backends. Nothing is imported here: `open_store` imports the one that is named, with its driver."""
