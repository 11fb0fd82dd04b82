"""Sweeps: segments, blobs, keys and history go when nothing needs them any longer."""
