"""Providers are found by entry point; what is wrong with a package from outside stays with that package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from app.errors import ProviderError, Transient
from app.plugins import FoundProvider, found_providers
from app.services.nodes.check_addresses import check_addresses, real_providers
from app.settings import Settings
from app.stack.outside import accounts, withheld_settings
from app.system import SystemClock
from app.wiring import build_providers
from providers.conformance.harness import Ways
from providers.conformance.suite import every_call

REQUIRED: dict[str, Any] = {
    "database_url": "postgresql://user:password@127.0.0.1:1/none",
    "secret_key": "s" * 32,
    "objects_signing_key": "o" * 32,
}
OWN = ["local", "joined", "slurm", "modal", "vast", "lambda", "runpod", "kubernetes"]
MODULE = """
from pydantic import Field, SecretStr
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.ports.plugin import ProviderPlugin, ProviderSettings
from app.ports.unusable import UnusableProvider

class Section(ProviderSettings):
    api_key: SecretStr | None = Field(None, min_length=4)
    gpus: list[str] = ["A100"]
    timeout_s: float = Field(5.0, gt=0)

    @property
    def is_configured(self):
        return bool(self.api_key)

class Made(UnusableProvider):
    def __init__(self, settings, tools, name):
        super().__init__(name, "a test")
        self.settings, self.tools = settings, tools

    def traits(self):
        rule = BillingRule(1000, BillingStart.READY)
        return (ProviderTraits(self.name, Tier.CONVENTIONAL, rule, 1, 2, 1, False, False),)

def build(settings, tools):
    return Made(settings, tools, NAME)

PLUGIN = ProviderPlugin(Section, build)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with one provider beside the service, as an installer would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def put(name: str, module: str = MODULE, package: str = "", target: str = "PLUGIN") -> None:
        package = package or f"allpass-{name}"
        place = f"plugin_{package.replace('-', '_').lower()}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{place}.py").write_text(f"NAME = {name!r}\n{module}")
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[allpass.providers]\n{name} = {place}:{target}\n")
        made.append(place)
        found_providers.__globals__["_found"].cache_clear()

    yield put
    found_providers.__globals__["_found"].cache_clear()
    for place in made:
        sys.modules.pop(place, None)


def settings(**given: Any) -> Settings:
    return Settings(**(REQUIRED | given))


def found(name: str, **given: Any) -> FoundProvider:
    (one,) = (one for one in settings(**given).providers if one.name == name)
    return one


async def built(**given: Any) -> dict[str, Any]:
    """Those that are configured, without that of hosts that have joined, which always is."""
    providers = build_providers(settings(**given), SystemClock(), cast("Any", None))
    for one in providers.values():
        await one.close()
    return {name: one for name, one in providers.items() if name != "joined"}


def test_those_that_ship_are_found_in_a_checkout_whatever_was_installed_of_it() -> None:
    """The project file counts: an environment that was made before it changed knows less."""
    own = [one.name for one in found_providers() if one.is_own]
    assert own == OWN
    assert all(one.problem == "" for one in found_providers() if one.is_own)


async def test_a_package_from_outside_adds_one(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings come from the environment, lists as JSON; it is built with what the service lends."""
    install("shed")
    assert not found("shed").is_configured
    monkeypatch.setenv("ALLPASS_SHED_API_KEY", "sesame")
    monkeypatch.setenv("ALLPASS_SHED_GPUS", '["H100", "L4"]')
    shed = (await built(operation_timeout_s=30))["shed"]
    assert shed.settings.api_key.get_secret_value() == "sesame"
    assert (shed.settings.gpus, shed.settings.timeout_s) == (["H100", "L4"], 5.0)
    assert shed.tools.operation_timeout_s == 30
    assert found("shed").package == "allpass-shed"


async def test_without_credentials_it_is_absent(install: Install) -> None:
    """As the others are: installed is not yet used."""
    install("shed")
    assert "shed" not in await built()
    assert "shed" in await built(shed_api_key="sesame")


def test_its_machines_cost_real_money_until_it_says_otherwise(install: Install) -> None:
    """So limits count them, and a service that they could never reach does not start."""
    install("shed")
    given = settings(shed_api_key="sesame")
    assert real_providers(given) == ["shed"]
    with pytest.raises(Exception, match="machines of shed could never reach"):
        check_addresses(given)
    install("hut", MODULE.replace("class Made", "Section.is_real = property(lambda _: False)\nclass Made"))
    assert "hut" not in real_providers(settings(hut_api_key="sesame"))


def test_its_account_is_used_by_a_stack_only_when_it_is_named(install: Install) -> None:
    """Its key in a shell is withheld like those of the others."""
    install("shed")
    assert accounts()["shed"] == ("ALLPASS_SHED_API_KEY",)
    shell = {"ALLPASS_SHED_API_KEY": "k", "ALLPASS_SHED_TIMEOUT_S": "3"}
    assert withheld_settings(shell, ()) == {"ALLPASS_SHED_API_KEY"}
    assert withheld_settings(shell, {"shed"}) == set()


BROKEN = {
    "import": ("import no_such_module", {}, "ModuleNotFoundError: No module named 'no_such_module'"),
    "leaves": ("import sys; sys.exit(3)", {}, "SystemExit: 3"),
    "nothing": ("PLUGIN = 5", {}, "no ProviderPlugin"),
    "settings": (MODULE, {"shed_timeout_s": 0}, "setting ALLPASS_SHED_TIMEOUT_S: Input should be greater than 0"),
    "unknown": (MODULE, {"shed_tiemout_s": 1}, "setting ALLPASS_SHED_TIEMOUT_S"),
    "property": (MODULE.replace("return bool(self.api_key)", "return 1 / 0"), {}, "ZeroDivisionError"),
    "build": (
        MODULE.replace("return Made(settings, tools, NAME)", "raise RuntimeError('no licence')"),
        {"shed_api_key": "sesame"},
        "it cannot be built: RuntimeError: no licence",
    ),
    "name": (MODULE.replace("tools, NAME)", "tools, 'vast')"), {"shed_api_key": "sesame"}, "calls itself vast"),
    "object": (
        MODULE.replace("return Made(settings, tools, NAME)", "return None"),
        {"shed_api_key": "sesame"},
        "it cannot",
    ),
}


@pytest.mark.parametrize("kind", list(BROKEN))
async def test_a_broken_one_is_named_and_harms_no_other(
    kind: str, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands there, says what is wrong to every call, and concludes nothing about machines that it may have."""
    module, given, told = BROKEN[kind]
    install("shed", module)
    install("hut")
    providers = await built(vast_api_key="k" * 10, hut_api_key="sesame", **given)
    assert set(providers) == {"vast", "hut", "shed"}
    assert "provider shed of package allpass-shed is left out" in caplog.text
    shed = providers["shed"]
    assert shed.traits() == ()
    for call in every_call(shed, _request(), Ways()):
        with pytest.raises(Transient, match="provider shed cannot be used") as raised:
            await call()
        assert told in raised.value.message
        assert isinstance(raised.value, ProviderError)


def _request() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(label="node_x")


def test_what_is_wrong_is_told_without_the_value(install: Install) -> None:
    """A key that is too short is a key all the same."""
    install("shed")
    problem = found("shed", shed_api_key="abc").problem
    assert "ALLPASS_SHED_API_KEY" in problem
    assert "abc" not in problem


def test_the_keys_of_a_package_that_cannot_be_read_are_withheld_by_their_prefix(install: Install) -> None:
    """Nobody knows which of them are secret."""
    install("shed", "import no_such_module")
    shell = {"ALLPASS_SHED_WHATEVER": "k", "ALLPASS_SHEDULE": "3"}
    assert withheld_settings(shell, ()) == {"ALLPASS_SHED_WHATEVER"}
    assert "shed" not in accounts()


def test_a_name_of_ours_stays_ours(install: Install) -> None:
    """Else a package could stand between the service and an account."""
    install("vast", package="allpass-other")
    ours, theirs = (one for one in found_providers() if one.name == "vast")
    assert (ours.is_own, ours.problem) == (True, "")
    assert "has a provider of this name" in theirs.problem


async def test_ours_is_built_where_another_has_taken_its_name(install: Install) -> None:
    """The one that came later does not replace it."""
    install("vast", package="allpass-other")
    assert type((await built(vast_api_key="k" * 10))["vast"]).__name__ == "VastProvider"
    assert await built() == {}
    assert "ALLPASS_VAST_DISK_GB" not in withheld_settings({"ALLPASS_VAST_DISK_GB": "64"}, {"vast"})


def test_a_name_that_two_packages_have_is_used_by_neither(install: Install) -> None:
    """Which one rents is not left to chance."""
    install("shed", package="allpass-one")
    install("shed", package="allpass-two")
    told = [one.problem for one in found_providers() if one.name == "shed"]
    assert len(told) == 2
    assert all("several packages" in problem for problem in told)


@pytest.mark.parametrize("name", ["Shed", "lambda-labs", "lambda_labs", "9lives", "database", "provider", "s3"])
def test_a_name_whose_settings_would_mix_with_others_is_refused(name: str, install: Install) -> None:
    """`ALLPASS_DATABASE_URL` is the service's."""
    install(name)
    problem = found(name).problem
    assert "must be lower-case" in problem or "would mix with ALLPASS_" in problem


def test_a_wrong_setting_of_those_that_ship_keeps_the_server_from_starting() -> None:
    """By its name, and without the value."""
    with pytest.raises(ValidationError, match="vast_disk_gb"):
        settings(vast_disk_gb=1)
    with pytest.raises(ValidationError, match="vast_disc_gb"):
        settings(vast_disc_gb=64)
