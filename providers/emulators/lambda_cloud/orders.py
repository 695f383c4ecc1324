"""A launch request, checked as Lambda checks it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from providers.emulators.lambda_cloud.answers import invalid, missing
from providers.emulators.lambda_cloud.firewalls import named_in
from providers.emulators.lambda_cloud.goods import REGIONS, TYPES, InstanceType
from providers.emulators.lambda_cloud.images import check_image

MOST_USER_DATA_BYTES = 1_000_000
LONGEST_NAME = 64
_HOSTNAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_FIELDS = frozenset(
    {
        "region_name", "instance_type_name", "ssh_key_names", "file_system_names", "file_system_mounts", "hostname",
        "name", "image", "user_data", "tags", "firewall_rulesets", "quantity",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """A launch that is right in itself; whether there is capacity is another question."""

    instance_type: InstanceType
    region: str
    ssh_key: str
    name: str | None
    hostname: str | None
    user_data: str
    tags: list[dict[str, str]]
    firewalls: Collection[str]


def read_order(body: Mapping[str, Any], ssh_keys: Collection[str]) -> LaunchOrder:
    """Raises LambdaError for whatever Lambda refuses."""
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise invalid(f"Unknown field: {unknown[0]}.")
    if body.get("quantity", 1) != 1:
        raise invalid("Requested too many instances.")
    instance_type = TYPES.get(_text(body, "instance_type_name"))
    if instance_type is None:
        raise missing("instance type")
    region = _text(body, "region_name")
    if region not in REGIONS:
        raise invalid(f"Unknown region: {region}.")
    if body.get("file_system_names") or body.get("file_system_mounts"):
        raise missing("file system")
    check_image(body.get("image"), region)
    hostname = _optional(body, "hostname", 63)
    if hostname is not None and not _HOSTNAME.match(hostname):
        raise invalid("Invalid hostname.")
    return LaunchOrder(
        instance_type=instance_type,
        region=region,
        ssh_key=_ssh_key(body.get("ssh_key_names"), ssh_keys),
        name=_optional(body, "name", LONGEST_NAME),
        hostname=hostname,
        user_data=_user_data(body.get("user_data")),
        tags=_tags(body.get("tags")),
        firewalls=named_in(body.get("firewall_rulesets")),
    )


def _ssh_key(names: Any, known: Collection[str]) -> str:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid("ssh_key_names must be a list of names.")
    if len(names) != 1:
        raise invalid("Exactly one SSH key must be specified.")
    if names[0] not in known:
        raise missing("SSH key")
    return str(names[0])


def _user_data(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value.encode()) > MOST_USER_DATA_BYTES or "\0" in value:
        raise invalid("user_data must be text of at most 1 MB.")
    return value


def _tags(value: Any) -> list[dict[str, str]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid("tags must be a list.")
    for tag in value:
        if not isinstance(tag, dict) or set(tag) != {"key", "value"}:
            raise invalid("A tag has a key and a value.")
        if not all(isinstance(text, str) and len(text) <= 128 for text in tag.values()) or not tag["key"]:
            raise invalid("Keys and values of tags are texts of at most 128 characters.")
    return [dict(tag) for tag in value]


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} is required.")
    return value


def _optional(body: Mapping[str, Any], name: str, longest: int) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise invalid(f"{name} must have 1 to {longest} characters.")
    return value
