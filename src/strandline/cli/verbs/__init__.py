"""The commands, one file each: a command parses its arguments, calls the node and prints."""
