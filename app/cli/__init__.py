"""Commands of the server package. The SDK's CLI finds them through the entry-point group `allpass.commands`."""
