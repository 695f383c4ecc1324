"""Nothing real is rented by a service that rented machines could not call."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidInput
from app.main import main
from app.services.nodes.check_addresses import check_addresses, real_providers
from app.settings import Settings

REACHED = {"public_url": "https://allpass.example.com", "objects_url": "https://objects.example.com"}
ACCOUNTS: dict[str, dict[str, str]] = {
    "modal": {"modal_token_id": "ak-1", "modal_token_secret": "as-1"},
    "vast": {"vast_api_key": "v" * 64},
    "lambda": {"lambda_api_key": "l" * 40, "lambda_ssh_key": "allpass"},
}
EMULATED = {"modal_server_url": "http://127.0.0.1:1", "vast_url": "http://127.0.0.1:1", "lambda_url": "http://vast:1"}


def settings(**given: Any) -> Settings:
    needed = {"database_url": "postgresql://x", "objects_signing_key": "k" * 40, "secret_key": "s" * 40}
    return Settings(**{**needed, **given})


@pytest.mark.parametrize("company", sorted(ACCOUNTS))
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"public_url": "http://127.0.0.1:7700"}, "ALLPASS_PUBLIC_URL"),
        ({"public_url": "http://10.0.0.7:7700"}, "ALLPASS_PUBLIC_URL"),
        ({"objects_url": "http://192.168.0.2:7701"}, "ALLPASS_OBJECTS_URL"),
    ],
)
def test_a_real_company_and_a_private_address_are_refused(company: str, wrong: dict[str, str], named: str) -> None:
    """The error names the setting, the company and the way out."""
    with pytest.raises(InvalidInput) as caught:
        check_addresses(settings(**ACCOUNTS[company], **{**REACHED, **wrong}))
    assert caught.value.param == named
    assert company in caught.value.message
    assert "ALLPASS_PRIVATE_ADDRESSES" in caught.value.message


def test_a_private_bucket_is_refused_and_a_public_name_for_it_is_not() -> None:
    """What agents are told counts, not what the service uses."""
    bucket = {"objects_store": "s3", "s3_bucket": "b", "s3_access_key": "a", "s3_secret_key": "s"}
    given = {**ACCOUNTS["vast"], **REACHED, **bucket}
    check_addresses(settings(**given))  # AWS itself
    with pytest.raises(InvalidInput, match="ALLPASS_S3_PUBLIC_ENDPOINT"):
        check_addresses(settings(**given, s3_endpoint="http://minio:9000"))
    check_addresses(
        settings(**given, s3_endpoint="http://minio:9000", s3_public_endpoint="https://objects.example.com")
    )


def test_emulators_and_a_service_without_accounts_may_be_anywhere() -> None:
    """Their machines are where the emulator is."""
    everything = {name: value for account in ACCOUNTS.values() for name, value in account.items()}
    check_addresses(settings())
    check_addresses(settings(**everything, **EMULATED))
    assert real_providers(settings(**everything)) == ["modal", "vast", "lambda"]
    assert real_providers(settings(**everything, **{**EMULATED, "vast_url": "https://console.vast.ai"})) == ["vast"]


def test_an_operator_whose_machines_are_in_the_same_network_can_say_so() -> None:
    """A VPN in the image, a dedicated region."""
    check_addresses(settings(**ACCOUNTS["lambda"], private_addresses=True))


def test_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it asks the database or any provider; a process that only answers requests rents nothing, and goes on."""
    for name, value in {"DATABASE_URL": "postgresql://127.0.0.1:1/none", "DATABASE_TIMEOUT_S": "0.2"}.items():
        monkeypatch.setenv(f"ALLPASS_{name}", value)
    for name, value in {"OBJECTS_SIGNING_KEY": "k" * 40, "SECRET_KEY": "s" * 40, "VAST_API_KEY": "v" * 64}.items():
        monkeypatch.setenv(f"ALLPASS_{name}", value)
    monkeypatch.setenv("ALLPASS_PORT", "0")
    assert main() == 2
    assert "setting ALLPASS_PUBLIC_URL: 'http://127.0.0.1:7700' leads to this host" in capsys.readouterr().err
    monkeypatch.setenv("ALLPASS_ROLE", "api")
    assert main() == 1
    assert "ALLPASS_PUBLIC_URL" not in capsys.readouterr().err
