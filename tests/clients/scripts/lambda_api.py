"""Asks a Lambda for all that its generated client knows how to ask, and prints what it has read: one JSON object.

python lambda_api.py URL KEY
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from lambda_ai_cloud_api_client import AuthenticatedClient
from lambda_ai_cloud_api_client import models as m
from lambda_ai_cloud_api_client.api.firewalls import (
    create_firewall_ruleset,
    delete_firewall_ruleset,
    firewall_rulesets_list,
    get_firewall_ruleset,
    get_global_firewall_ruleset,
    update_firewall_ruleset,
)
from lambda_ai_cloud_api_client.api.images import list_images
from lambda_ai_cloud_api_client.api.instances import (
    get_instance,
    launch_instance,
    list_instance_types,
    list_instances,
    post_instance,
    restart_instance,
    terminate_instance,
)
from lambda_ai_cloud_api_client.api.ssh_keys import add_ssh_key, delete_ssh_key, list_ssh_keys

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], raise_on_unexpected_status=True)


def call(operation: Any, *words: Any, **fields: Any) -> Any:
    """The data of a success; an error as its own class. What fits no schema raises."""
    answer = operation.sync(*words, client=client, **fields)
    assert answer is not None, operation.__name__
    return answer.data if hasattr(answer, "data") else answer.error


def until(ref: str, status: str) -> m.Instance:
    end = time.monotonic() + 30
    while (seen := call(get_instance, ref)).status != status:
        assert time.monotonic() < end, seen
        time.sleep(0.05)
    return seen


types = call(list_instance_types)
image = next(each for each in call(list_images) if each.region.name == "us-east-1")
key = call(add_ssh_key, body=m.AddSSHKeyRequest(name="generated"))
rule = m.FirewallRule(m.NetworkProtocol.TCP, "0.0.0.0/0", "SSH", [22, 22])
region = m.PublicRegionCode("us-east-1")
ruleset = call(create_firewall_ruleset, body=m.FirewallRulesetCreateRequest("generated", region, [rule]))
wanted: dict[str, Any] = {
    "region_name": region,
    "instance_type_name": "gpu_1x_a10",
    "ssh_key_names": ["generated"],
    "name": "generated",
    "image": m.ImageSpecificationID(image.id),
    "user_data": "#!/bin/sh\nexec sleep 600\n",
    "tags": [m.RequestedTagEntry("a", "b")],
    "firewall_rulesets": [m.FirewallRulesetEntry(ruleset.id)],
}
(ref,) = call(launch_instance, body=m.InstanceLaunchRequest(**wanted)).instance_ids
active = until(ref, "active")
in_use = call(delete_firewall_ruleset, ruleset.id)
call(restart_instance, body=m.InstanceRestartRequest([ref]))
until(ref, "active")
renamed = call(post_instance, ref, body=m.InstanceModificationRequest(name="renamed"))
refused = call(launch_instance, body=m.InstanceLaunchRequest(**{**wanted, "ssh_key_names": ["nobodys"]}))
changed = call(update_firewall_ruleset, ruleset.id, body=m.FirewallRulesetPatchRequest(name="other"))
listed = [each.id for each in call(list_instances)]
call(terminate_instance, body=m.InstanceTerminateRequest([ref]))
gone_keys = [call(delete_ssh_key, each.id) for each in call(list_ssh_keys) if each.name == "generated"]

print(
    json.dumps(
        {
            "types": sorted(types.to_dict()),
            "tags": [[each.key, each.value] for each in active.tags],
            "rulesets": [each.id for each in active.firewall_rulesets] == [ruleset.id],
            "users": call(get_firewall_ruleset, ruleset.id).instance_ids == [ref],
            "listed": listed == [ref],
            "in_use": in_use.code,
            "refused": refused.code,
            "renamed": renamed.name,
            "changed": changed.name,
            "global": call(get_global_firewall_ruleset).id,
            "kept": [each.name for each in call(firewall_rulesets_list)],
            "keys": [key.name, len(gone_keys)],
        }
    )
)
