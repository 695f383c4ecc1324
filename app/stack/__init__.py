"""The processes of the one-machine stack: how each is started, watched and ended with its parent."""
