"""The commands of an event store: `strandline persist …`."""
