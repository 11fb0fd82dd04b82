"""Sources of rows: the protocol, the registry, and the kinds that ship."""
