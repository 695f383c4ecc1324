"""What a keeper is to run, on its way from the cloud to the keeper. Loads nothing: a keeper starts with it."""

from __future__ import annotations

import os

MACHINE_ID_VARIABLE = "ALLPASS_MACHINE_ID"  # in the environment of all that a machine runs


class MachineOrder:
    """Kept in a private file: `environment` holds the node's token.

    The file is a row of texts, each ended by a zero byte, which no text that a process is started with can hold.
    """

    def __init__(
        self,
        *,
        command: list[str],
        environment: dict[str, str],
        directory: str,
        ended_file: str,
        die_with_cloud: bool,
    ) -> None:
        self.command = command
        self.environment = environment
        self.directory = directory
        self.ended_file = ended_file
        self.die_with_cloud = die_with_cloud

    def write(self, path: str | os.PathLike[str]) -> None:
        """Store it readable by the owner only. Raises ValueError for a text with a zero byte."""
        texts = ["1" if self.die_with_cloud else "0", self.directory, self.ended_file, str(len(self.command))]
        texts += self.command
        texts += [f"{name}={value}" for name, value in self.environment.items()]
        if any("\0" in text for text in texts):
            raise ValueError("a command, path or environment variable of a machine holds a zero byte")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(b"".join(os.fsencode(text) + b"\0" for text in texts))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> MachineOrder:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            die_with_cloud, directory, ended_file, count, *rest, _end = map(os.fsdecode, file.read().split(b"\0"))
        words = int(count)
        return cls(
            command=rest[:words],
            environment=dict(text.split("=", 1) for text in rest[words:]),
            directory=directory,
            ended_file=ended_file,
            die_with_cloud=die_with_cloud == "1",
        )
