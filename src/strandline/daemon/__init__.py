"""The daemon: everything that a node does by itself, in one process with one warm Spark.

`strandline up` runs it. Other commands that need Spark use the daemon's while it is there (presence.py).
"""
