"""Machines played by processes of this host: what the local cloud and the emulators rent out."""
