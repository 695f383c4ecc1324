"""A stack of one machine uses no account of the shell that was not named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from allpass.cli.main import app
from app.errors import InvalidInput
from app.plugins import found_providers
from app.settings import Settings
from app.stack.outside import (
    account_names,
    accounts_in,
    check_named,
    given_settings,
    own_addresses,
    read_real,
    withheld_settings,
)

SHELL = {
    "HOME": "/root",
    "ALLPASS_MODAL_TOKEN_ID": "ak-1",
    "ALLPASS_MODAL_TOKEN_SECRET": "as-1",
    "ALLPASS_VAST_API_KEY": "v" * 64,
    "ALLPASS_LAMBDA_API_KEY": "l" * 40,
    "ALLPASS_OBJECTS_STORE": "s3",
    "ALLPASS_S3_BUCKET": "the-teams",
    "ALLPASS_S3_ACCESS_KEY": "a",
    "ALLPASS_S3_SECRET_KEY": "s",
    "ALLPASS_LOCAL_CLOUD_URL": "http://127.0.0.1:1",
    "ALLPASS_LOCAL_CLOUD_KEY": "k",
    "ALLPASS_SERVERLESS_BUDGET_S": "20",
    "ALLPASS_VAST_DISK_GB": "128",
}
REACHED = {"ALLPASS_PUBLIC_URL": "https://a.example.com", "ALLPASS_OBJECTS_URL": "https://o.example.com"}


def test_only_what_is_no_account_is_taken_over() -> None:
    """Of the shell's settings a server gets those that lead nowhere by themselves."""
    assert given_settings(SHELL, ()) == {"ALLPASS_SERVERLESS_BUDGET_S": "20", "ALLPASS_VAST_DISK_GB": "128"}
    assert len(withheld_settings(SHELL, ())) == 10


def test_what_is_named_is_taken_over_and_nothing_else() -> None:
    """`--real vast,s3` is Vast.ai and the bucket."""
    given = given_settings(SHELL, read_real("vast, s3"))
    assert "ALLPASS_VAST_API_KEY" in given
    assert given["ALLPASS_OBJECTS_STORE"] == "s3"
    assert not any("MODAL" in name or "LAMBDA" in name or "LOCAL" in name for name in given)


def test_an_account_is_known_by_all_of_its_settings_and_none_of_a_provider_that_is_gone() -> None:
    """The file of a stack may name one whose package was removed since."""
    assert accounts_in(SHELL, {"vast", "gone"}) == account_names({"vast", "gone"}) == {"ALLPASS_VAST_API_KEY"}
    half = {name: value for name, value in SHELL.items() if name != "ALLPASS_MODAL_TOKEN_SECRET"}
    assert accounts_in(half, {"modal"}) == set()


def test_every_secret_of_the_settings_that_opens_an_account_is_known_here() -> None:
    """A new provider's key would otherwise be passed on by whoever forgot this list."""
    own = {"database_url", "metrics_token", "objects_signing_key", "secret_key", "earlier_secret_keys"}
    secret = {
        f"ALLPASS_{name.upper()}"
        for name, field in Settings.model_fields.items()
        if SecretStr.__name__ in str(field.annotation) and name not in own
    }
    secret |= {name for one in found_providers() for name in one.account_variables}
    assert {"ALLPASS_MODAL_TOKEN_SECRET", "ALLPASS_LOCAL_CLOUD_KEY", "ALLPASS_LAMBDA_API_KEY"} < secret
    assert secret - withheld_settings(dict.fromkeys(secret, "x"), ()) == set()


@pytest.mark.parametrize(
    ("missing", "real"),
    [
        ("ALLPASS_VAST_API_KEY", {"vast"}),
        ("ALLPASS_MODAL_TOKEN_SECRET", {"modal", "vast"}),
        ("ALLPASS_PUBLIC_URL", {"lambda"}),
        ("ALLPASS_OBJECTS_URL", {"lambda"}),
        ("ALLPASS_S3_BUCKET", {"s3"}),
    ],
)
def test_a_named_account_has_to_be_whole(missing: str, real: set[str]) -> None:
    """The error names what is not set."""
    shell = {name: value for name, value in {**SHELL, **REACHED}.items() if name != missing}
    with pytest.raises(InvalidInput, match=missing):
        check_named(shell, frozenset(real), port=7700, objects_port=7701)
    check_named({**SHELL, **REACHED}, frozenset(real), port=7700, objects_port=7701)


def test_a_private_address_is_refused_with_the_port_that_a_tunnel_has_to_lead_to() -> None:
    """It is what whoever reads the error has to do next."""
    shell = {**SHELL, **REACHED, "ALLPASS_OBJECTS_URL": "http://127.0.0.1:7701"}
    with pytest.raises(InvalidInput, match=r"leads to port 7701 .* it is http://127\.0\.0\.1:7701"):
        check_named(shell, frozenset({"vast"}), port=7700, objects_port=7701)
    check_named(shell, frozenset({"vast", "s3"}), port=7700, objects_port=7701)
    check_named({**shell, "ALLPASS_PRIVATE_ADDRESSES": "true"}, frozenset({"vast"}), port=1, objects_port=2)


def test_the_shells_addresses_count_only_where_machines_are_rented() -> None:
    """A team's own address in the shell leads to the team's service, not to this stack."""
    assert own_addresses({**SHELL, **REACHED}, ()) == {}
    assert own_addresses({**SHELL, **REACHED}, {"s3"}) == {}
    assert own_addresses({**SHELL, **REACHED}, {"vast"}) == REACHED


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--real", "gcp"], "'gcp' is none of slurm, modal, vast, lambda, runpod, kubernetes, s3"),
        (["--real", "vast", "--providers", "emulated"], "leave out --providers"),
        (["--real", "vast"], "ALLPASS_VAST_API_KEY"),
    ],
)
def test_up_refuses_before_it_makes_anything(options: list[str], told: str, tmp_path: Path) -> None:
    """No data directory, no process."""
    done = CliRunner().invoke(app, ["up", "--data-dir", f"{tmp_path}/data", *options], env={"COLUMNS": "200"})
    assert done.exit_code != 0
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "data").exists()
