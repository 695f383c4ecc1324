"""What may be in a bundle, so that every machine can unpack it. The SDK asks before it sends, the service before it
registers: a bundle that no machine can unpack is its owner's to mend, and no machine's fault."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_MEMBERS = 100_000
MOST_UNPACKED_BYTES = 1024**3
LONGEST_PATH_BYTES = 1024
LONGEST_NAME_BYTES = 255  # of a file or folder on the usual file systems
_SHOWN_CHARS = 80


class BadMember(ValueError):
    """`path`: of the member, None for the bundle as a whole. The text says what is wrong, `fix` what to do."""

    def __init__(self, path: str | None, problem: str, fix: str) -> None:
        super().__init__(problem if path is None else f"{shown(path)}: {problem}")
        self.path = path
        self.fix = fix


@dataclass
class Members:
    """The members of one bundle, as they come."""

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    _count: int = 0
    _unpacked_bytes: int = 0

    def add_folder(self, path: str) -> None:
        """Raises BadMember."""
        self._count_one(path, 0)
        parts = _parts(path)
        if parts:
            self._enter("/".join(parts), path)

    def add_file(self, path: str, size_bytes: int) -> None:
        """Raises BadMember."""
        self._count_one(path, size_bytes)
        parts = _parts(path)
        if not parts or path.endswith("/"):
            raise BadMember(path, "a file needs a name", "rename it")
        whole = "/".join(parts)
        if whole in self.folders:
            raise BadMember(path, "is a file and a folder at once", "rename one of the two")
        if whole in self.files:
            raise BadMember(path, "is in the bundle twice", "pack it once")
        if len(parts) > 1:
            self._enter("/".join(parts[:-1]), path)
        self.files.add(whole)

    def _enter(self, folder: str, path: str) -> None:
        """Folders are known with all that they are in: a known one ends the walk."""
        while folder and folder not in self.folders:
            if folder in self.files:
                problem = (
                    "is a file and a folder at once" if folder == path.rstrip("/") else f"{shown(folder)} is a file"
                )
                raise BadMember(path, problem, "rename one of the two")
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]

    def _count_one(self, path: str, size_bytes: int) -> None:
        self._count += 1
        self._unpacked_bytes += size_bytes
        if self._count > MOST_MEMBERS:
            raise BadMember(
                None, f"has more than {MOST_MEMBERS} files and folders", "leave data out and fetch it from the script"
            )
        if self._unpacked_bytes > MOST_UNPACKED_BYTES:
            raise BadMember(
                None,
                f"unpacks to more than {MOST_UNPACKED_BYTES} bytes, at {shown(path)}",
                "leave data and models out and fetch them from the script",
            )


def _parts(path: str) -> list[str]:
    """The names that a path is made of. Raises BadMember for one that cannot be written on every machine."""
    _check_text(path)
    if path.startswith("/"):
        raise BadMember(path, "an absolute path would leave the job's folder", "pack it relative to the code folder")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadMember(path, '".." would leave the job\'s folder', "pack it relative to the code folder")
    if len(path.encode()) > LONGEST_PATH_BYTES:
        raise BadMember(path, f"the path is longer than {LONGEST_PATH_BYTES} bytes", "shorten it")
    if any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts):
        raise BadMember(path, f"a name in it is longer than {LONGEST_NAME_BYTES} bytes", "shorten it")
    return parts


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BadMember(path, "the name is not valid UTF-8", "rename it") from error
    if any(character in path for character in "\\\n\r\0"):
        raise BadMember(
            path, "a name with a backslash or a line break means something else on other systems", "rename it"
        )


def shown(path: str) -> str:
    """A path for a message: as it is where it can be, shortened."""
    short = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}..."
    return short if short.isprintable() and short.strip() else ascii(short)
