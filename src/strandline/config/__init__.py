"""The file `strandline.toml`: its sections and keys, its JSON schema, and the homes of nodes."""
