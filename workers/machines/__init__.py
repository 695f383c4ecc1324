"""Machines that are processes of this host, each with its own folder, users and end.

Hosts of a pool give them out; the local cloud and the emulators play with them.
"""
