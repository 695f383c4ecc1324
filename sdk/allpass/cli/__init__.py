"""The `allpass` command. Nothing here loads the client before a command needs it: help is immediate."""
