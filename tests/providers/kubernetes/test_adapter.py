"""What the adapter of Kubernetes does with each thing that clusters do, against the emulated one."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from app import errors
from app.core.model.money import Money
from app.core.model.pool import Pool
from app.core.pools import governed
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.conformance.suite import new_label, request_for
from providers.kubernetes.adapter import KubernetesProvider
from providers.kubernetes.order import job_name
from tests.providers.cloud_process import PATIENCE_S, ok
from tests.providers.emulators.process import KEY
from tests.providers.kubernetes_cluster import SCRIPT, EmulatedCluster, shape


async def until(probe: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await probe()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return found


async def order(provider: KubernetesProvider, **fields: Any) -> MachineRequest:
    return replace(request_for((await provider.offers())[0]), **fields)


async def seen(provider: KubernetesProvider, ref: str, status: MachineStatus, words: str = "") -> Machine:
    async def look() -> Machine | None:
        machine = await provider.get(ref)
        return machine if machine is not None and machine.status is status and words in machine.detail else None

    found: Machine = await until(look)
    return found


# -- what is created


async def test_a_job_is_bound_to_its_node_and_has_no_secret_in_it(cluster: EmulatedCluster) -> None:
    """All that the shape says is in the pod; the script with its tokens is in a Secret that goes with the job."""
    gpu = shape(
        node_selector={"nvidia.com/gpu.product": "A100_SXM4"},
        tolerations=[{"key": "team", "value": "ml", "effect": "NoSchedule"}],
        priority_class="batch",
        lifetime_s=3_600,
        gpu_count=2,
    )
    provider = cluster.provider(gpu, grace_s=77, pull_secrets=("registry",))
    request = await order(provider, lifetime_ms=7_200_000)
    machine = await provider.create(request)
    job = cluster.item("jobs", machine.ref)
    assert job is not None
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert machine.ref == job_name(request.label) == job["metadata"]["name"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["suspend"]) == (0, 3_600, False)
    assert pod["restartPolicy"] == "Never"
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("allpass-machine", False)
    assert (pod["terminationGracePeriodSeconds"], pod["priorityClassName"]) == (77, "batch")
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "A100_SXM4"}
    assert pod["tolerations"] == [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "32Gi"}
    assert container["image"] == request.image
    assert "sleep 600" not in str(job)
    secret = cluster.item("secrets", machine.ref)
    assert secret is not None
    assert base64.b64decode(secret["data"]["ALLPASS_BOOTSTRAP"]).decode() == SCRIPT
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    await provider.terminate(machine.ref)
    await seen(provider, machine.ref, MachineStatus.ENDED)
    assert cluster.item("secrets", machine.ref) is None
    await provider.close()


async def test_what_runs_is_told_to_end_and_has_its_grace(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """An eviction is told while the pod still runs: why, and when it is over."""
    slow = cluster.provider(grace_s=20)
    slow._bootstrap = lambda _: (
        "#!/bin/sh\ntrap 'echo told; sleep 1; exit 0' TERM\necho up\nwhile :; do sleep 0.1; done"
    )
    machine = await slow.create(await order(slow))
    await seen(slow, machine.ref, MachineStatus.RUNNING)
    await until(lambda: slow.logs(machine.ref, 5))
    cluster.act(cluster.uid_of(machine.ref), "evict")
    leaving = await seen(provider, machine.ref, MachineStatus.RUNNING, "EvictionByEvictionAPI")
    assert leaving.ends_ms is not None
    assert 10_000 < leaving.ends_ms - time.time() * 1000 < 21_000
    ended = await seen(provider, machine.ref, MachineStatus.ENDED)
    assert ended.billed_to_ms is not None
    await slow.close()


async def test_a_lifetime_is_told_from_its_start_and_kept_by_the_cluster(cluster: EmulatedCluster) -> None:
    """A job that was active for as long as its shape lives is ended by the cluster itself."""
    provider = cluster.provider(shape(lifetime_s=2), grace_s=1)
    machine = await provider.create(await order(provider))
    running = await seen(provider, machine.ref, MachineStatus.RUNNING)
    assert running.ends_ms is not None
    assert abs(running.ends_ms - running.created_ms - 2_000) <= 2_000
    await seen(provider, machine.ref, MachineStatus.ENDED)
    await provider.close()


@pytest.mark.parametrize(("action", "words"), [("preempt_pod", "PreemptionByScheduler"), ("pressure", "TerminationBy")])
async def test_pods_that_make_room_end_with_the_reason(
    cluster: EmulatedCluster, provider: KubernetesProvider, action: str, words: str
) -> None:
    """For a pod that matters more, and for a node that is short of memory."""
    machine = await provider.create(await order(provider))
    cluster.act(cluster.uid_of(machine.ref), action)
    ended = await seen(provider, machine.ref, MachineStatus.ENDED)
    assert action == "preempt_pod" or words in ended.detail


async def test_a_lost_node_is_no_end(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """Nobody knows what runs there: it is there until somebody says that it is not."""
    machine = await provider.create(await order(provider))
    cluster.act(cluster.uid_of(machine.ref), "node_lost")
    lost = await seen(provider, machine.ref, MachineStatus.RUNNING, "nothing is heard of its node")
    assert lost.ref in {each.ref for each in await provider.list_owned() if each.status is MachineStatus.RUNNING}


async def test_a_node_that_is_back_hears_what_was_to_end(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """Nothing of it can be ended while it is away, and what stood still there does not come to life again."""
    machine, stays = [await provider.create(await order(provider)) for _ in range(2)]
    uids = [cluster.uid_of(each.ref) for each in (machine, stays)]
    for uid in uids:
        cluster.act(uid, "node_lost", halts=uid == uids[0])
    await provider.terminate(machine.ref)
    await seen(provider, machine.ref, MachineStatus.RUNNING, "its pod is to end")
    cluster.nodes_are_back()
    await seen(provider, machine.ref, MachineStatus.ENDED)
    assert cluster.machine(uids[0])["state"] == "ended"
    running = await seen(provider, stays.ref, MachineStatus.RUNNING)
    assert running.detail == ""


async def test_an_image_that_cannot_be_had_stops_the_machine_after_a_while(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """At first the registry may only be busy; later its jobs take the next offer."""
    cluster.fault(op="create_jobs", kind="pull_error")
    machine = await provider.create(await order(provider))
    await seen(provider, machine.ref, MachineStatus.BOOTING, "ImagePullBackOff")
    hasty = cluster.provider(max_wait_ms=0)
    await seen(hasty, machine.ref, MachineStatus.STOPPED, "ImagePullBackOff")
    await hasty.close()


# -- queues, limits and quotas


async def test_kueue_lets_jobs_in_and_takes_their_place_back(cluster: EmulatedCluster) -> None:
    """A job with a queue begins suspended; one whose place was taken back has ended, whatever becomes of its job."""
    cluster.switch(kueue_admits=False)
    provider = cluster.provider(shape(queue="team-a"), grace_s=1)
    machine = await provider.create(await order(provider))
    job = cluster.item("jobs", machine.ref)
    assert job is not None
    assert (job["spec"]["suspend"], job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == (True, "team-a")
    await seen(provider, machine.ref, MachineStatus.BOOTING, "waits in queue team-a")
    headers = {"Content-Type": "application/merge-patch+json"}
    place = cluster.place("jobs", machine.ref)
    ok(cluster.http.patch(place, json={"spec": {"suspend": False}}, headers=headers))
    await seen(provider, machine.ref, MachineStatus.RUNNING)
    cluster.act(cluster.uid_of(machine.ref), "suspend")
    ended = await seen(provider, machine.ref, MachineStatus.ENDED)
    assert "Kueue" in ended.detail
    await provider.terminate(machine.ref)
    assert await provider.find(str(machine.label)) == []
    await provider.close()


async def test_a_shape_whose_machine_waits_in_vain_is_not_offered(cluster: EmulatedCluster) -> None:
    """Others still are; and not at once when that machine has been given up."""
    provider = cluster.provider(shape(), shape(name="b200", node_selector={"gpu": "b200"}), max_wait_ms=1_500)
    b200 = next(each for each in await provider.offers() if each.offer_id == "b200")
    machine = await provider.create(request_for(b200))

    async def names() -> set[str]:
        return {each.offer_id for each in await provider.offers()}

    async def is_barred() -> bool:
        return await names() == {"a100"}

    assert await names() == {"a100", "b200"}
    await until(is_barred)
    await provider.terminate(machine.ref)
    assert await names() == {"a100"}

    async def is_back() -> bool:
        return await names() == {"a100", "b200"}

    await until(is_back)
    await provider.close()


async def test_a_shape_has_at_most_its_number_of_machines(cluster: EmulatedCluster) -> None:
    """And is offered again when one has gone."""
    provider = cluster.provider(shape(most=1))
    machine = await provider.create(await order(provider))

    async def is_full() -> bool:
        return await provider.offers() == []

    await until(is_full)
    await provider.terminate(machine.ref)
    await until(provider.offers)
    await provider.close()


async def test_quotas_of_the_namespace_are_heeded(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """No offer where one more machine would not fit; what the API refuses for a quota says so."""
    request = await order(provider)
    hard = {"requests.nvidia.com/gpu": "0", "count/jobs.batch": "0"}
    cluster.post("resourcequotas", {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    assert await provider.offers() == []
    with pytest.raises(errors.QuotaExceeded, match="raise the ResourceQuota"):
        await provider.create(request)
    assert cluster.items("jobs") == []


async def test_the_price_is_that_of_the_pool(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """The pool of the shape's name prices its offers, and every listing tells that price of its machines."""
    (offer,) = governed(
        await provider.offers(), [Pool(name="a100", launcher="kubernetes", price=Money(250_000))], {}, 0
    )
    assert offer.price_per_hour == Money(250_000)
    machine = await provider.create(request_for(offer))
    assert machine.price_per_hour == Money(250_000)
    assert [each.price_per_hour for each in await provider.list_owned()] == [Money(250_000)]


# -- whose it is


async def test_nobody_elses_is_ever_touched(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """Not even what has the name that our job would have: it is neither found nor ended, and takes our create."""
    request = await order(provider)
    theirs = cluster.post("jobs", cluster.job(job_name(request.label)))
    assert await provider.get(job_name(request.label)) is None
    await provider.terminate(job_name(request.label))
    with pytest.raises(errors.InvalidRequest, match="is not ours"):
        await provider.create(request)
    left = cluster.item("jobs", job_name(request.label))
    assert left is not None
    assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert cluster.items("secrets") == []


async def test_a_create_that_finds_its_own_job_has_it_looked_up(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """The answer to an earlier call was lost: there is one job, with the tokens of that call."""
    request = await order(provider)
    cluster.fault(op="create_secrets", kind="drop", when="after")
    with pytest.raises(errors.Transient):
        await provider.create(request)
    first = await provider.create(request)
    with pytest.raises(errors.OutcomeUnknown):
        await provider.create(request)
    assert [each.ref for each in await provider.find(request.label)] == [first.ref]
    assert len(cluster.items("jobs")) == len(cluster.items("secrets")) == 1


async def test_a_job_whose_answer_was_lost_is_given_its_secret_and_begins(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """Without it, its pod would hold a GPU in vain until it is given up. What came of the call is not clear for all
    that, and a job that was never made is given nothing."""
    request = await order(provider)
    cluster.fault(op="create_jobs", kind="drop", when="after")
    with pytest.raises(errors.OutcomeUnknown):
        await provider.create(request)
    await seen(provider, job_name(request.label), MachineStatus.RUNNING)
    other = await order(provider)
    cluster.fault(op="create_jobs", kind="error", when="before", args={"status": 500})
    with pytest.raises(errors.OutcomeUnknown):
        await provider.create(other)
    assert cluster.item("secrets", job_name(other.label)) is None


async def test_a_job_whose_secret_cannot_be_had_goes_again(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """Its pod could never start."""
    cluster.switch(forbidden="create secrets")
    with pytest.raises(errors.AuthFailed, match=r"rbac\.yaml"):
        await provider.create(await order(provider))
    assert cluster.items("jobs") == []


async def test_one_object_that_makes_no_sense_hides_no_other(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """Neither one without sense, nor one of ours that somebody has emptied."""
    machine = await provider.create(await order(provider))
    label = new_label()
    broken = cluster.job(job_name(label), labels={"app.kubernetes.io/managed-by": "allpass", "allpass/node": label})
    cluster.post("jobs", broken)
    cluster.fault(op="list_jobs", kind="malformed")
    cluster.fault(op="list_pods", kind="malformed")
    assert machine.ref in {each.ref for each in await provider.list_owned()}


async def test_twenty_thousand_pods_of_others_are_not_read(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """They are never sent; and our own come in pages."""
    cluster.switch(crowd=20_000)
    cluster.http.get(cluster.place("secrets"), timeout=60)
    cluster.switch(page_limit=1)
    machines = [await provider.create(await order(provider)) for _ in range(3)]
    begun = time.monotonic()
    assert {each.ref for each in await provider.list_owned()} == {each.ref for each in machines}
    assert time.monotonic() - begun < 10


# -- when the API server has troubles


async def test_a_list_that_expires_between_its_pages_is_begun_anew(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    machine = await provider.create(await order(provider))
    cluster.fault(op="list_jobs", kind="expired")
    assert [each.ref for each in await provider.list_owned()] == [machine.ref]
    cluster.fault(op="list_jobs", kind="expired", count=9)
    with pytest.raises(errors.Transient, match="expires again and again"):
        await provider.list_owned()


@pytest.mark.parametrize("kind", ["cut", "expired", "drop"])
async def test_a_watch_that_breaks_off_only_makes_the_next_look_a_list(cluster: EmulatedCluster, kind: str) -> None:
    """Nothing is believed that a broken watch told last."""
    for op in ("watch_jobs", "watch_pods"):
        cluster.fault(op=op, kind=kind)
    provider = cluster.provider(shape(most=1))
    machine = await provider.create(await order(provider))

    async def is_full() -> bool:
        return await provider.offers() == []

    await until(is_full)
    await provider.terminate(machine.ref)
    await until(provider.offers)
    await provider.close()


async def test_a_watch_whose_version_is_forgotten_begins_with_a_list(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """The API server was compacted: what changed meanwhile is seen all the same."""
    machine = await provider.create(await order(provider))
    uid = cluster.uid_of(machine.ref)
    await provider.offers()

    async def is_followed() -> bool:
        return provider._jobs._is_live and provider._pods._is_live

    async def is_not() -> bool:
        return not (provider._jobs._is_live or provider._pods._is_live)

    await until(is_followed)
    cluster.act(uid, "compact")
    await until(is_not)
    assert len(await provider.offers()) == 1
    await until(is_followed)


async def test_what_is_deleted_by_a_new_process_ended_when_its_pod_did(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """That process has never seen it run; its end is what the pod said of it before it was deleted."""
    machine = await seen(provider, (await provider.create(await order(provider))).ref, MachineStatus.RUNNING)
    cluster.act(cluster.uid_of(machine.ref), "kill")
    ended = await seen(provider, machine.ref, MachineStatus.ENDED)
    late = cluster.provider()
    await late.terminate(machine.ref)

    async def is_deleted() -> bool:
        return cluster.item("jobs", machine.ref) is None

    await until(is_deleted)
    told = await late.get(machine.ref)
    assert told is not None
    assert (told.status, told.billed_from_ms) == (MachineStatus.ENDED, machine.billed_from_ms)
    assert told.billed_to_ms == ended.billed_to_ms is not None
    await late.close()


async def test_a_list_may_lack_what_is_there(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """The emulator hides as much as it is told to, once."""
    machine = await provider.create(await order(provider))
    for op in ("list_jobs", "list_pods"):
        cluster.fault(op=op, kind="partial_list", args={"hide": 9})
    assert await provider.list_owned() == []
    assert [each.ref for each in await provider.list_owned()] == [machine.ref]


async def test_a_pod_that_no_list_shows_is_there_while_its_job_counts_it(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """Also to whoever looks at the machine alone. Once it is really gone, its job says so, and it has ended."""
    machine = await seen(provider, (await provider.create(await order(provider))).ref, MachineStatus.RUNNING)
    cluster.fault(op="list_pods", kind="partial_list", args={"hide": 9}, count=2)
    for look in (provider.get(machine.ref), provider.find(machine.label)):
        told = await look
        assert (told if isinstance(told, list) else [told]) == [machine]
    pod = cluster.pod_of(machine.ref)["metadata"]["name"]
    cluster.http.request("DELETE", cluster.place("pods", pod), json={"gracePeriodSeconds": 0})
    await seen(provider, machine.ref, MachineStatus.ENDED)


async def test_offers_are_followed_and_not_listed(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """Once the watch is there, a list that would fail is not asked for."""
    await provider.offers()

    async def is_followed() -> bool:
        return provider._jobs._is_live and provider._pods._is_live

    await until(is_followed)
    cluster.fault(op="list_jobs", kind="error", args={"status": 500})
    assert [each.offer_id for each in await provider.offers()] == ["a100"]


async def test_what_is_refused_says_what_to_do(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """A webhook, RBAC, a namespace that is not there: each by one sentence."""
    request = await order(provider)
    cluster.fault(op="create_jobs", kind="denied", args={"message": "no root here"})
    with pytest.raises(errors.InvalidRequest, match=r"no root here; change the shape"):
        await provider.create(request)
    cluster.switch(forbidden="create jobs")
    with pytest.raises(errors.AuthFailed, match=r"cannot create resource .*rbac\.yaml"):
        await provider.create(request)
    cluster.switch(forbidden="list resourcequotas")
    assert await provider.offers()
    elsewhere = cluster.provider(namespace="nowhere")
    with pytest.raises(errors.InvalidRequest, match="create the namespace"):
        await elsewhere.create(request)
    await elsewhere.close()


async def test_a_conflict_leaves_what_took_its_place(cluster: EmulatedCluster, provider: KubernetesProvider) -> None:
    """A 409 of a delete is told when another object has the name."""
    machine = await provider.create(await order(provider))
    cluster.fault(op="delete_jobs", kind="error", args={"status": 409})
    await provider.terminate(machine.ref)
    assert cluster.item("jobs", machine.ref) is not None


async def test_no_token_is_ever_written_down(
    cluster: EmulatedCluster, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in logs nor in errors, whatever the kubeconfig is like."""
    caplog.set_level(logging.DEBUG)
    broken = tmp_path / "broken"
    broken.write_text(cluster.kubeconfig.read_text().replace('"clusters"', f'"{KEY}": [,'))
    said = []
    for way in (broken, tmp_path / "nothing", cluster.variant(tmp_path / "other", cluster.url, "https://127.0.0.1:9")):
        provider = cluster.provider(kubeconfig=way)
        with pytest.raises((errors.AuthFailed, errors.Transient)) as raised:
            await provider.list_owned()
        said.append(str(raised.value))
        await provider.close()
    provider = cluster.provider()
    await provider.create(await order(provider))
    await provider.close()
    assert "there is no file" in said[1]
    assert all(KEY not in text for text in (*said, caplog.text))
