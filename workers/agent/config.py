"""What the agent is told by its environment, and how its token disappears from there.

Imported first at every start, before anything heavy: until it has run, the token can be seen. A rented machine has a
join token; where its node's own token is given instead, the agent needs not join.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import List, Mapping, MutableMapping, NamedTuple, Optional, Sequence

JOIN_TOKEN = "ALLPASS_JOIN_TOKEN"  # noqa: S105 - the variable's name
TOKEN = "ALLPASS_NODE_TOKEN"  # noqa: S105 - names, not secrets
TOKEN_FILE = "ALLPASS_NODE_TOKEN_FILE"  # noqa: S105 - names, not secrets
TOKEN_FD = "ALLPASS_AGENT_TOKEN_FD"  # noqa: S105 - names, not secrets
GPUS = "ALLPASS_AGENT_GPUS"
CONTENTS_BYTES = 1024**3  # some ten bundles of the largest size
MODELS_BYTES = 64 * 1024**3
ALONE_IDLE_S, ALONE_TRAINING_S = 3_600, 86_400
GPU_LOOK_S = 60
MOST_PROCESSES = 32_768  # of one run, threads included; a training with eight GPUs has some thousands
_FIRST_ENVIRON = "/proc/self/environ"
_PR_SET_DUMPABLE = 4
_BYTES = "bytes (0: keep nothing)"


_JOINS = "join "  # before a join token in the pipe


class Credential(NamedTuple):
    """What the agent proves itself with. `joins`: at its first call, and to get the node's token for it."""

    token: str
    joins: bool


class Config(NamedTuple):
    url: str
    root: Path
    python: str
    cache: Path
    first_user_uid: Optional[int]  # of the block that whoever started us holds for this machine (blocks.py)
    user_ids: Sequence[range]  # among which we claim a block, where there is none
    code_as_root: bool  # the owner allows it
    single_run: bool  # the machine is for one run, and thrown away after it
    shares_host: bool  # with other machines, whatever else is said of it
    most_processes: int
    keeps_spares: bool
    fetches_ahead: bool
    contents_bytes: int
    models_bytes: int
    alone_idle_s: int  # so long without an answer of the service, a machine on which nothing trains ends by itself,
    alone_training_s: int  # and so long, any
    nvidia_smi: Optional[str] = None  # the one to ask, where it is not the one in PATH
    gpu_look_s: int = GPU_LOOK_S  # between two looks at the GPUs; 0: none but the first
    checks_gpus: bool = False  # each calculates something before user code may run
    torch_folder: Optional[str] = None  # where the torch for that is, where it is not the one of `python`
    probe_bytes: int = 0  # to download once, to see how fast that is
    own_gpus: Optional[Sequence[int]] = None  # the host's GPUs that are this machine's, in its own order; None: all
    of_pool: bool = False  # its host has joined a pool: others may have to reach it


def load(environ: Mapping[str, str]) -> Config:
    """The configuration in `environ`. Raises ValueError naming the variable that is missing or wrong."""
    url = environ.get("ALLPASS_URL", "")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"ALLPASS_URL is {url!r}; set it to the control plane's address, e.g. https://allpass.example")
    root = Path(environ.get("ALLPASS_AGENT_ROOT") or _default_root())
    from workers.agent.blocks import ranges  # when the token is out of sight

    uid = environ.get("ALLPASS_AGENT_USER_UID", "")
    if uid and not (uid.isdigit() and int(uid) > 0):
        raise ValueError(f"ALLPASS_AGENT_USER_UID is {uid!r}; it must be the number of an unprivileged user")
    return Config(
        url=url,
        root=root.absolute(),
        python=environ.get("ALLPASS_AGENT_PYTHON") or sys.executable,
        cache=Path(environ.get("ALLPASS_AGENT_CACHE") or root / "environments").absolute(),
        first_user_uid=int(uid) if uid else None,
        user_ids=ranges(environ),
        code_as_root=environ.get("ALLPASS_AGENT_CODE_AS_ROOT") == "1",
        single_run=environ.get("ALLPASS_AGENT_SINGLE_RUN") == "1",
        shares_host=environ.get("ALLPASS_AGENT_SHARES_HOST") == "1",
        most_processes=_number(environ, "ALLPASS_AGENT_MOST_PROCESSES", MOST_PROCESSES, "processes (0: any number)"),
        keeps_spares=environ.get("ALLPASS_AGENT_SPARES", "1") != "0",
        fetches_ahead=environ.get("ALLPASS_AGENT_AHEAD", "1") != "0",
        contents_bytes=_number(environ, "ALLPASS_AGENT_CONTENTS_BYTES", CONTENTS_BYTES, _BYTES),
        models_bytes=_number(environ, "ALLPASS_AGENT_MODELS_BYTES", MODELS_BYTES, _BYTES),
        alone_idle_s=_number(environ, "ALLPASS_AGENT_ALONE_IDLE_S", ALONE_IDLE_S, "seconds"),
        alone_training_s=_number(environ, "ALLPASS_AGENT_ALONE_TRAINING_S", ALONE_TRAINING_S, "seconds"),
        nvidia_smi=environ.get("ALLPASS_AGENT_NVIDIA_SMI") or None,
        gpu_look_s=_number(environ, "ALLPASS_AGENT_GPU_LOOK_S", GPU_LOOK_S, "seconds (0: never again)"),
        checks_gpus=environ.get("ALLPASS_AGENT_GPU_CHECK") == "1",
        torch_folder=environ.get("ALLPASS_AGENT_TORCH") or None,
        probe_bytes=_number(environ, "ALLPASS_AGENT_PROBE_BYTES", 0, "bytes (0: not measured)"),
        own_gpus=_gpu_indices(environ),
        of_pool=environ.get("ALLPASS_AGENT_OF_POOL") == "1",
    )


def take_credential(environ: MutableMapping[str, str]) -> Credential:
    """The node's token or the join token, removed from where it was (variable, file or pipe). Raises ValueError when
    there is none."""
    for name in (TOKEN_FD, TOKEN_FILE, TOKEN, JOIN_TOKEN):
        if name in environ:
            token = _read(name, environ.pop(name)).strip()
            joins = name == JOIN_TOKEN or token.startswith(_JOINS)
            if token:
                for other in (TOKEN, JOIN_TOKEN):
                    environ.pop(other, None)
                return Credential(token[len(_JOINS) :] if token.startswith(_JOINS) else token, joins)
    raise ValueError(f"no token: set {JOIN_TOKEN}, or {TOKEN} or {TOKEN_FILE}")


def blot_out_tokens(environ: Mapping[str, str]) -> bool:
    """Overwrite tokens where the kernel shows them; True when nobody can read them there any more.

    /proc/<pid>/environ shows the memory in which a process got its first environment, for as long as it lives,
    whatever is deleted later. `environ` itself keeps them. False, with nothing relied upon, where the system has no
    such file to prove the success with.
    """
    given = [name for name in (TOKEN, JOIN_TOKEN) if environ.get(name)]
    if not given:
        return True
    if not os.path.exists(_FIRST_ENVIRON):  # noqa: PTH110 - speed: this runs before all else
        return False
    find = ctypes.CDLL(None).getenv
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    for name in given:
        place = find(name.encode())
        if place is None:
            return False
        ctypes.memset(place, 0, len(os.fsencode(environ[name])))
    with open(_FIRST_ENVIRON, "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
        shown = file.read()
    return not any(os.fsencode(environ[name]) in shown for name in given)


def rewritten_environ(environ: Mapping[str, str]) -> MutableMapping[str, str]:
    """An environment without tokens; the one that counts waits in a pipe instead: for where they cannot be blotted
    out. The agent starts itself once more with this one."""
    cleaned = dict(environ)
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    with os.fdopen(writer, "wb") as pipe:
        credential = take_credential(cleaned)
        pipe.write(((_JOINS if credential.joins else "") + credential.token).encode())
    cleaned[TOKEN_FD] = str(reader)
    return cleaned


def same_program() -> List[str]:
    """The command line that starts this agent once more."""
    packed = archive()
    safe_path = getattr(sys.flags, "safe_path", False)  # from Python 3.11 on
    kept = (("-I", sys.flags.isolated), ("-S", sys.flags.no_site), ("-P", safe_path and not sys.flags.isolated))
    flags = [flag for flag, given in kept if given]
    return [sys.executable, *flags, *(["-m", "workers.agent"] if packed is None else [packed])]


def archive() -> Optional[str]:
    """The zipapp that we run from, if we do."""
    found = getattr(__spec__.loader, "archive", None)
    return found if isinstance(found, str) else None


def forbid_inspection() -> None:
    """Keep other processes of our uid from reading our memory (Linux; elsewhere the system forbids it already)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _number(environ: Mapping[str, str], name: str, default: int, what: str) -> int:
    value = environ.get(name) or str(default)
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name} is {value!r}; it must be a number of {what}")
    return int(value)


def _gpu_indices(environ: Mapping[str, str]) -> Optional[Sequence[int]]:
    text = environ.get(GPUS, "")
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise ValueError(f"{GPUS} is {text!r}; it must be numbers of GPUs as nvidia-smi tells them, e.g. 0,2")
    return tuple(map(int, parts)) or None


def _default_root() -> Path:
    import tempfile  # it loads compressors and more, and is rarely needed

    return Path(tempfile.gettempdir()) / f"allpass-agent-{os.getuid()}"


def _read(name: str, value: str) -> str:
    if name == TOKEN_FD:
        with os.fdopen(int(value), "rb") as pipe:
            return pipe.read().decode()
    if name == TOKEN_FILE:
        path = Path(value)
        token = path.read_text(encoding="utf-8")
        path.unlink()
        return token
    return value
