"""The agent: runs on a rented machine, dials home, and executes what the control plane says should run there.

Standard library only, Python 3.9 or newer, shipped as one zipapp (`build.py`). It holds a node token and nothing
else: bytes travel by signed URL, and user code never sees the token.
"""

__version__ = "0.1.0"
