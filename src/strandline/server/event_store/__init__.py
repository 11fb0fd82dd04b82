"""The event store over HTTP: the server for the remote backend."""
