"""What brings the service up elsewhere says what the code can do: compose files, their keys, Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

from app.core.reach import is_public
from app.plugins import found_providers
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ("docker-compose.yml", "compose.real.yml")
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
KUBERNETES = "1.30"
OF_PROVIDERS = {
    f"{one.prefix}{name.upper()}"
    for one in found_providers()
    if one.plugin
    for name in one.plugin.settings.model_fields
}
SETTINGS = {f"ALLPASS_{name.upper()}" for name in Settings.model_fields} | OF_PROVIDERS
ELSEWHERE = {"ALLPASS_EMULATOR_KEY", "ALLPASS_EMULATOR_ADMIN_KEY", "ALLPASS_DOMAIN"}  # not settings of the server
SECRET = re.compile(r"KEY$|SECRET|TOKEN|PASSWORD|DATABASE_URL")
PROVIDER = re.compile(r"^ALLPASS_(MODAL|VAST|LAMBDA|RUNPOD)_")


def composed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield f"{path.name} {document['kind']}", document


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, document in manifests():
        if document["kind"] in {"Deployment", "Job"}:
            yield name, document["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", COMPOSE)
def test_each_image_is_built_once(name: str) -> None:
    """Where several services build one name, the next `up` takes them for changed and replaces them, and the emulators'
    machines with them. An image that none builds has a version."""
    services = composed(name)["services"]
    built = Counter(service["image"] for service in services.values() if "build" in service)
    assert set(built.values()) == {1}
    for service in services.values():
        assert service["image"] in built or ":" in service["image"], service["image"]


@pytest.mark.parametrize("name", COMPOSE)
def test_what_may_be_replicated_has_no_port_of_its_own(name: str) -> None:
    """Only what stands in front is reached from outside, each port by one service, and not as a range."""
    services = composed(name)["services"]
    assert [one for one, service in services.items() if "ports" in service] == ["front"]
    assert all("-" not in port for port in services["front"]["ports"])
    assert "api" in services["front"]["depends_on"]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_sets_what_is_a_setting(name: str) -> None:
    """A name that is none is ignored by the server, and nobody would notice."""
    for one, service in composed(name)["services"].items():
        for key in service.get("environment", {}):
            assert not key.startswith("ALLPASS_") or key in SETTINGS | ELSEWHERE, f"{one}: {key}"
    assert set(re.findall(r"\$\{(ALLPASS_\w+)", (ROOT / name).read_text())) <= SETTINGS | ELSEWHERE


def test_the_real_stack_has_nothing_of_the_emulated_one() -> None:
    """No address, pace or key of an emulator; companies' keys are read by the control loops alone."""
    real = composed("compose.real.yml")
    for one, service in real["services"].items():
        assert not [key for key in service.get("environment", {}) if PROVIDER.match(key)], one
        assert ("providers.env" in service.get("env_file", [])) == (one == "control"), one
    text = (ROOT / "compose.real.yml").read_text()
    assert "emulat" not in text.lower()
    environment = real["services"]["control"]["environment"]
    for key in ("ALLPASS_PUBLIC_URL", "ALLPASS_S3_PUBLIC_ENDPOINT"):
        shown = re.sub(r"\$\{ALLPASS_DOMAIN[^}]*\}", "allpass.example.com", environment[key])
        shown = re.sub(r"\$\{ALLPASS_S3_PUBLIC_ENDPOINT:-(.*)\}$", r"\1", shown)
        assert shown.startswith("https://"), shown
        assert is_public(shown), shown


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_itself_understands_the_file(name: str, tmp_path: Path) -> None:
    """Where Docker's compose is installed. It needs no engine."""
    keys = dict.fromkeys(set(re.findall(r"\$\{(\w+):\?", (ROOT / name).read_text())), "x")
    for file in (name, "examples", "allpass.env", "providers.env"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes() if (ROOT / file).is_file() else b"")
    words = ["docker", "compose", "--file", name, "config", "--quiet"]
    try:
        if subprocess.run([*words[:2], "version"], capture_output=True, check=False).returncode:
            pytest.skip("docker has no compose here")
    except FileNotFoundError:
        pytest.skip("there is no docker here")
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | keys, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _write_keys(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "scripts/compose-env.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text((ROOT / "scripts/compose-env.sh").read_text())
    return subprocess.run(["sh", str(script), *words], capture_output=True, text=True, check=False)


def _kept(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("words", "file"), [((), COMPOSE[0]), (("--real", "allpass.example.com"), COMPOSE[1])])
def test_the_script_writes_what_the_file_asks_for(words: tuple[str, ...], file: str, tmp_path: Path) -> None:
    """All that has no default, readable by its owner alone, new for each installation, and never twice."""
    assert _write_keys(tmp_path, *words).returncode == 0
    kept = _kept(tmp_path / ".env")
    assert set(re.findall(r"\$\{(\w+):\?", (ROOT / file).read_text())) <= kept.keys()
    assert kept.get("COMPOSE_FILE", COMPOSE[0]) == file
    secrets = [value for key, value in kept.items() if SECRET.search(key)]
    assert len(set(secrets)) == len(secrets) >= 3
    assert min(map(len, secrets)) >= 32
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    before = {path: path.read_bytes() for path in files}
    assert _write_keys(tmp_path, *words).returncode == 0
    assert {path: path.read_bytes() for path in files} == before


def test_the_companies_keys_that_the_script_names_are_settings(tmp_path: Path) -> None:
    _write_keys(tmp_path, "--real", "allpass.example.com")
    named = re.findall(r"^#(ALLPASS_\w+)=", (tmp_path / "providers.env").read_text(), re.MULTILINE)
    assert named
    assert set(named) <= SETTINGS


@pytest.mark.parametrize(
    "words",
    [
        ("--real",),
        ("--real", "https://allpass.example.com"),
        ("--real", "10.1.2.3"),
        ("--real", "server"),
        ("--real", "a..b"),
        ("--real", "a b.example.com"),
        ("--real", "x.example.com$(id)"),
        ("--real", "a.example.com", "b.example.com"),
        ("--reel", "a.example.com"),
    ],
)
def test_the_script_refuses_what_is_no_name(words: tuple[str, ...], tmp_path: Path) -> None:
    """With one line that says what it takes, and without writing anything."""
    done = _write_keys(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_the_script_does_not_give_keys_of_one_installation_to_another(tmp_path: Path) -> None:
    assert _write_keys(tmp_path, "--real", "one.example.com").returncode == 0
    done = _write_keys(tmp_path, "--real", "other.example.com")
    assert done.returncode == 2
    assert "not for other.example.com" in done.stderr
    assert _kept(tmp_path / ".env")["ALLPASS_DOMAIN"] == "one.example.com"


def test_manifests_are_what_kubernetes_knows() -> None:
    """Against the schemas of that version; an unknown field is refused."""
    seen = Counter(document["kind"] for _, document in manifests() if _checked(document))
    assert seen == Counter(
        {
            "Deployment": 2,
            "Job": 1,
            "ConfigMap": 1,
            "Namespace": 1,
            "Service": 1,
            "Ingress": 1,
            "PodDisruptionBudget": 1,
        }
    )


def _checked(document: dict[str, Any]) -> bool:
    if document["kind"] == "Kustomization":  # a file of kustomize, not of the cluster
        return False
    kubernetes_validate.validate(document, KUBERNETES, strict=True)
    return True


def test_the_check_of_manifests_sees_a_wrong_field() -> None:
    document = next(document for _, document in manifests() if document["kind"] == "Deployment")
    document["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_all_manifests_are_applied() -> None:
    kustomization = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in MANIFESTS}
    images = {container["image"] for _, pod in pods() for container in pod["containers"]}
    assert images == {image["name"] for image in kustomization["images"]}


def test_pods_can_do_no_more_than_they_need() -> None:
    """As an unprivileged user, on a read-only file system, without rights in the cluster: the namespace demands it."""
    for name, pod in pods():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        for container in pod["containers"]:
            allowed = container["securityContext"]
            assert (allowed["readOnlyRootFilesystem"], allowed["allowPrivilegeEscalation"]) == (True, False), name
            assert allowed["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name


def test_manifests_set_what_is_a_setting_and_only_control_has_the_companies_keys() -> None:
    for name, document in manifests():
        if document["kind"] == "ConfigMap":
            assert set(document["data"]) <= SETTINGS, name
            assert not [key for key in document["data"] if SECRET.search(key)], name
    for name, pod in pods():
        for container in pod["containers"]:
            assert {one["name"] for one in container.get("env", [])} <= SETTINGS, name
            secrets = {one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one}
            assert ("allpass-providers" in secrets) == (name == "control.yaml Deployment"), name


def test_the_settings_of_manifests_and_guide_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts from what the ConfigMap and the guide's commands give, and not from less."""
    given: dict[str, str] = {}
    for _, document in manifests():
        if document["kind"] == "ConfigMap":
            given |= document["data"]
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    for key, value in re.findall(r"--from-literal=(ALLPASS_\w+)=(\S+)", guide):
        given[key] = value if "$" not in value else "k" * 64
    for key in given:
        assert key in SETTINGS, key
    for name in [name for name in os.environ if name.startswith("ALLPASS_")]:
        monkeypatch.delenv(name)
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    assert Settings().s3_bucket == "allpass"
    monkeypatch.delenv("ALLPASS_S3_SECRET_KEY")
    with pytest.raises(ValidationError, match="s3_secret_key"):
        Settings()
