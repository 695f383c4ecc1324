"""Modal's client hears nothing but us."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_LOOK = """
import json, os
before = dict(os.environ)
from providers.modal import sdk
names = ("server_url", "max_throttle_wait", "disable_api_proxy", "environment", "sandbox_v2", "token_id")
told = {name: sdk.modal.config.config.get(name) for name in names}
print(json.dumps({"told": told, "same": dict(os.environ) == before}))
"""


def test_neither_environment_nor_file_reaches_the_client(tmp_path: Path) -> None:
    """A server, proxy or environment of Modal's that the operator has exported changes nothing; nor does his file."""
    file = tmp_path / "modal.toml"
    file.write_text('[default]\nserver_url = "http://elsewhere"\ntoken_id = "ak-file"\nenvironment = "file"\n')
    surroundings = {
        "MODAL_CONFIG_PATH": str(file),
        "MODAL_SERVER_URL": "http://elsewhere",
        "MODAL_ENVIRONMENT": "exported",
        "MODAL_MAX_THROTTLE_WAIT": "600",
        "MODAL_DISABLE_API_PROXY": "0",
        "MODAL_SANDBOX_V2": "0",
        "MODAL_LOGLEVEL": "ERROR",
    }
    ran = subprocess.run(
        [sys.executable, "-c", _LOOK], env={**os.environ, **surroundings}, capture_output=True, text=True, check=True
    )
    answer = json.loads(ran.stdout)
    assert answer["same"], "the environment of this process, and of those it starts, must stay as it was"
    assert answer["told"] == {
        "server_url": "https://api.modal.com,https://api.modal2.com",
        "max_throttle_wait": 0,
        "disable_api_proxy": True,
        "environment": None,
        "sandbox_v2": True,
        "token_id": None,
    }


def test_who_does_not_use_modal_does_not_load_its_client() -> None:
    """Only the two folders of Modal import its client, or each other, before Modal is configured."""
    own = {ROOT / "providers" / "modal", ROOT / "providers" / "emulators" / "modal"}
    others = [
        path for part in ("app", "providers") for path in (ROOT / part).rglob("*.py") if not own & set(path.parents)
    ]
    assert ROOT / "app" / "wiring.py" in others
    early = re.compile(r"^(?:from|import) (?:modal|grpclib|providers\.(?:emulators\.)?modal)\b", re.MULTILINE)
    assert [path for path in others if early.search(path.read_text())] == []
