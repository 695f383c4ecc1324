"""The result of a training, put into a repository of the Hugging Face hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

TRIES = 4
_PAUSE_S = 15.0
_SERVERS_OWN = 500  # from this status on


def check(repository: str) -> None:
    """Make the repository, private, if it is not there. Before anything is trained: raises ValueError where the hub
    would take nothing from us."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        api.auth_check(repository, write=True)
    except LocalTokenNotFoundError as error:
        raise ValueError("push_to: the hub asks for a token: allpass finetune ... --secret HF_TOKEN") from error
    except HfHubHTTPError as error:
        if _is_final(error):
            raise ValueError(f"push_to: the hub takes nothing for {repository!r}: {_said(error)}") from error
        print(f"training: the hub could not be asked about {repository}: {_said(error)}", flush=True)
    except OSError as error:
        print(f"training: the hub could not be asked about {repository}: {error}", flush=True)


def push(folder: Path, repository: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send all of `folder`. Raises ValueError where that cannot be done; the files stay where they are."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    for tried in range(1, TRIES + 1):
        try:
            HfApi().upload_folder(repo_id=repository, folder_path=folder, commit_message="Fine-tuned with Allpass")
        except (HfHubHTTPError, OSError) as error:
            if tried == TRIES or (isinstance(error, HfHubHTTPError) and _is_final(error)):
                raise ValueError(
                    f"push_to: {repository!r} did not take the files: {_said(error)}. They are kept with the job: "
                    f"allpass download, then hf upload {repository} FOLDER"
                ) from error
            print(f"training: the hub did not take the files, once more: {_said(error)}", flush=True)
            sleep(_PAUSE_S * tried)
        else:
            print(f"training: pushed to {repository}", flush=True)
            return


def _is_final(error: Exception) -> bool:
    """A refusal, not a failure of the hub or of the way to it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and status < _SERVERS_OWN and status not in (408, 429)


def _said(error: Exception) -> str:
    """In one line, without an address that may carry what is nobody's business."""
    return str(getattr(error, "server_message", None) or error).splitlines()[0].partition(" for url")[0][:300]
