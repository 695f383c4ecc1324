"""What makes a Linux host one of a pool: it joins by a token, starts agents with some of its GPUs each, and leaves.

Standard library only, for Python 3.9 and later. It dials in, and is never called. It installs nothing on the host,
changes none of its settings, and never touches a process that it did not start.
"""
