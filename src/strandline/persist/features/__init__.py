"""The features of the store, one file each: log, kv, snapshots, consumers, views and the rest."""
