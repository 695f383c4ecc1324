"""Nodes that never called home, fell silent, or hold a run that does not leave.

A machine we cannot reach is not a dead machine. Silence is measured only over time in which somebody was there to
hear: after the control plane itself was away, every clock of silence starts anew.
"""

from __future__ import annotations

import logging

from app.control.context import ControlContext, as_ms
from app.control.each import each, each_by_itself
from app.control.watch import NO_ANSWER
from app.core.lifecycle import Outcome
from app.core.model.health import Chore
from app.core.model.job import JobEnd, JobState
from app.core.model.node import NodeState
from app.core.model.run import RunEnd, StopMode
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.decisions.ticks import last_tick_ms
from app.db.nodes.lifecycle import (
    NodeRow,
    StoppingRun,
    lock_node,
    nodes_in,
    stopping_runs,
    unowned_serverless,
)
from app.db.runs.members import unsettled_gangs
from app.db.transitions import Event, add_node_event, move_node
from app.errors import ProviderError
from app.ports.objects import ObjectStore
from app.ports.provider import Machine, MachineStatus
from app.services.checkpoints.follow_transfers import still_comes
from app.services.gangs.settle_exits import settle_late, settle_silent
from app.services.moves.hand_jobs_on import hand_jobs_on
from app.services.nodes.give_machine_back import NEVER_CAME
from app.services.nodes.lose_node import lose_node
from app.services.nodes.release_node import release_node
from app.services.runs.end_run import end_run

log = logging.getLogger(__name__)

_COMING = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN)
_MAY_BE_LOST = (NodeState.UNREACHABLE, NodeState.DRAINING)
_KILL_MARGIN_MS = 30_000
# A silent node is given up after this many times `lost_after_s` when its provider does not answer either, or when
# no agent at all is heard.
_PATIENCE = 5
# A check that comes this many intervals late says that this process was not running meanwhile.
_LATE_CHECKS = 4


class Heartbeats:
    """The chore that watches over nodes and runs on their way."""

    def __init__(self, context: ControlContext, objects: ObjectStore | None = None) -> None:
        self._context = context
        self._objects = objects
        self._unreachable_ms = as_ms(context.settings.unreachable_after_s)
        self._lost_ms = as_ms(context.settings.lost_after_s)
        self._heard_from_ms: int | None = None
        self._checked_ms = 0
        self._quiet = False  # no agent was heard at the last check

    def forget(self) -> None:
        """A new term begins: look again since when somebody has been listening."""
        self._heard_from_ms = None

    async def check(self) -> None:
        """One round. Each node and run is dealt with apart from the others, under the leader's term."""
        now_ms = self._context.clock.now_ms()
        heard_from_ms = await self._listening_since(now_ms)
        async with self._context.database.transaction() as connection:
            coming = await nodes_in(connection, _COMING)
            ready = await nodes_in(connection, (NodeState.READY, NodeState.UNREACHABLE))
            draining = await nodes_in(connection, (NodeState.DRAINING,))
            grace_ms = as_ms(self._context.settings.stop_grace_s)
            leaving = await stopping_runs(connection, now_ms=now_ms, usual_grace_ms=grace_ms)
            unowned = await unowned_serverless(connection)
            unsettled = await unsettled_gangs(connection, before_ms=now_ms - grace_ms - _KILL_MARGIN_MS)
        silences = [self._silence_ms(node, heard_from_ms, now_ms) for node in ready]
        self._quiet = min(silences, default=self._unreachable_ms + 1) > self._unreachable_ms
        # When nobody at all is heard any more, it is more likely that we are deaf than that all of them died.
        deaf = len(ready) > 1 and min(silences) > self._unreachable_ms

        async def look_after(node: NodeRow) -> None:
            silence_ms = self._silence_ms(node, heard_from_ms, now_ms)
            if node.state in _COMING:
                if node.heartbeat_ms is None and self._startup_over(node, heard_from_ms, now_ms):
                    await self._give_up_if_heard(node)
            elif node.state is not NodeState.DRAINING:
                await self._listen(node, silence_ms, deaf=deaf)
            elif silence_ms > self._unreachable_ms:  # its agent was to save and say so; it may not have had the time
                await self._ask_after(node, silence_ms, deaf=deaf)

        async def see_out(run: StoppingRun) -> None:
            await self._see_out(run, heard_from_ms, now_ms)

        nodes = [*coming, *ready, *draining]
        await each_by_itself(self._context, Chore.HEARTBEATS, nodes, look_after, named=lambda node: node.node_id)
        await each_by_itself(self._context, Chore.HEARTBEATS, leaving, see_out, named=lambda run: run.run_id)
        await each(self._context, Chore.HEARTBEATS, unowned, self._release_unowned)

        async def settle(connection: Connection, run_id: str) -> None:
            await settle_late(connection, self._context.ids, run_id, now_ms=now_ms)

        await each(self._context, Chore.HEARTBEATS, unsettled, settle)

    def _cut_off(self, error: ProviderError) -> bool:
        """Whether it may be our own network that fails: no agent and no provider is heard, nor was one lately. Nothing
        is concluded then, and when we hear again, every silence has begun just now."""
        answered_ms, now_ms = self._context.watch.answered_ms, self._context.clock.now_ms()
        answered_lately = answered_ms is not None and now_ms - answered_ms <= self._lost_ms
        if not self._quiet or answered_lately or not isinstance(error, NO_ANSWER):
            return False
        log.warning("no agent and no provider is heard: that may be our own network, nothing is given up for it")
        self._heard_from_ms = now_ms
        return True

    async def _give_up_if_heard(self, node: NodeRow) -> None:
        """Of a node that should have called home. While nobody is heard, its provider is asked first."""
        provider = self._context.providers.get(node.provider)
        if self._quiet and provider is not None:
            try:
                await self._context.ask(provider.find(node.node_id))
            except ProviderError as error:
                if self._cut_off(error):
                    return
        await self._give_up(node.node_id)

    async def _listening_since(self, now_ms: int) -> int:
        """The moment from which silence counts: 0, or when we came back after having been away."""
        late_ms = _LATE_CHECKS * as_ms(self._context.settings.heartbeat_check_s)
        if self._heard_from_ms is None:
            async with self._context.database.transaction() as connection:
                before_ms = await last_tick_ms(connection, before_term=self._context.leader.term)
            away = before_ms is None or now_ms - before_ms > self._unreachable_ms
            self._heard_from_ms = now_ms if away else 0
        elif now_ms - self._checked_ms > max(late_ms, self._unreachable_ms):
            self._heard_from_ms = now_ms
        self._checked_ms = now_ms
        return self._heard_from_ms

    def _startup_over(self, node: NodeRow, heard_from_ms: int, now_ms: int) -> bool:
        return now_ms > max(node.startup_deadline_ms, heard_from_ms + self._unreachable_ms)

    def _silence_ms(self, node: NodeRow, heard_from_ms: int, now_ms: int) -> int:
        return now_ms - max(node.heartbeat_ms or node.requested_ms, heard_from_ms)

    async def _listen(self, node: NodeRow, silence_ms: int, *, deaf: bool) -> None:
        if node.state is NodeState.READY:
            if silence_ms > self._unreachable_ms:
                await self._mark_unreachable(node.node_id, silence_ms)
        elif silence_ms <= self._unreachable_ms:
            if node.heartbeat_ms is not None and node.heartbeat_ms > (node.unreachable_since_ms or 0):
                await self._mark_back(node.node_id)
        else:
            await self._ask_after(node, silence_ms, deaf=deaf)

    async def _ask_after(self, node: NodeRow, silence_ms: int, *, deaf: bool) -> None:
        """Lose the node when its provider says it is gone, or when it has been silent for too long."""
        provider = self._context.providers.get(node.provider)
        answered, gone, outage, interrupted = False, "", False, False
        if provider is not None and node.provider_ref is not None:
            try:
                machine = await self._context.ask(provider.get(node.provider_ref))
                answered, gone = True, _over(machine)
                outage = machine is not None and machine.outage
                interrupted = machine is not None and machine.interrupted
            except ProviderError as error:
                log.warning("%s is silent, and %s does not say how it is: %s", node.node_id, node.provider, error)
                if self._cut_off(error):
                    return
        if gone:
            await self._lose(node.node_id, gone, outage=outage, interrupted=interrupted)
        elif silence_ms > self._unreachable_ms + self._lost_ms * (1 if answered and not deaf else _PATIENCE):
            await self._lose(node.node_id, f"silent for {silence_ms // 1000} s")

    async def _mark_unreachable(self, node_id: str, silence_ms: int) -> None:
        now_ms = self._context.clock.now_ms()
        async with self._context.database.transaction() as connection:
            node = await self._still(connection, node_id)
            if node is None or self._spoke_again(node, now_ms):
                return
            event = Event("node_unreachable", f"no word from its agent for {silence_ms // 1000} s")
            unreachable = NodeState.UNREACHABLE
            await move_node(connection, node_id, unreachable, event, now_ms=now_ms, unreachable_since_ms=now_ms)
            await settle_silent(connection, self._context.ids, node_id, now_ms=now_ms)

    async def _mark_back(self, node_id: str) -> None:
        async with self._context.database.transaction() as connection:
            node = await self._still(connection, node_id)
            if node is not None and node.state is NodeState.UNREACHABLE:
                event = Event("node_back", "its agent calls again")
                now_ms = self._context.clock.now_ms()
                await move_node(connection, node_id, NodeState.READY, event, now_ms=now_ms, unreachable_since_ms=None)

    async def _lose(self, node_id: str, message: str, *, outage: bool = False, interrupted: bool = False) -> None:
        now_ms = self._context.clock.now_ms()
        async with self._context.database.transaction() as connection:
            node = await self._still(connection, node_id)
            if node is None or node.state not in _MAY_BE_LOST or self._spoke_again(node, now_ms):
                return
            budget, why = self._context.settings.fault_budget, {"outage": outage, "interrupted": interrupted}
            await lose_node(connection, self._context.ids, node_id, message, now_ms=now_ms, fault_budget=budget, **why)

    async def _give_up(self, node_id: str) -> None:
        """It never called home: the jobs take the next offer, and whatever machine there is gets ended."""
        now_ms = self._context.clock.now_ms()
        async with self._context.database.transaction() as connection:
            node = await self._still(connection, node_id)
            if node is None or node.state not in _COMING or node.heartbeat_ms is not None:
                return
            waited_s = (now_ms - node.requested_ms) // 1000
            message = f"{node.provider} {node.offer.offer_id} did not come up within {waited_s} s"
            await add_node_event(connection, node_id, Event(NEVER_CAME, message), now_ms=now_ms)
            await hand_jobs_on(connection, self._context.ids, node, message, now_ms=now_ms)
            await release_node(connection, self._context.ids, node_id, message, now_ms=now_ms)

    async def _see_out(self, run: StoppingRun, heard_from_ms: int, now_ms: int) -> None:
        """A run that was told to stop and is still there although its agent had all the time it needs, and somebody
        to tell that it has left. An upload may last as long as something of it arrives, up to a limit."""
        since_ms = max(run.stop_asked_ms, heard_from_ms) + run.grace_ms
        killed = run.stop_mode is StopMode.KILL
        if killed:
            why = "" if now_ms > since_ms + _KILL_MARGIN_MS else None
        else:
            why = await self._why_no_longer(run, since_ms, now_ms)
        if why is None:
            return
        message = f"did not leave within {duration(now_ms - run.stop_asked_ms)} of being asked to{why}"
        outcome = (
            Outcome(RunEnd.CANCELLED, JobState.CANCELLED, JobEnd.CANCELLED, False, message)
            if killed
            else Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, message)
        )
        async with self._context.database.transaction() as connection:
            await self._context.leader.guard(connection)
            await end_run(connection, self._context.ids, run.run_id, outcome, now_ms=now_ms)

    async def _why_no_longer(self, run: StoppingRun, since_ms: int, now_ms: int) -> str | None:
        """Why its final checkpoint is not waited for any more; None: it is."""
        patience_ms = as_ms(self._context.settings.transfer_patience_s)
        limit_ms = as_ms(self._context.settings.transfer_limit_s)
        if now_ms - since_ms > max(limit_ms, patience_ms):
            return (
                f", the longest that a final checkpoint is waited for (ALLPASS_TRANSFER_LIMIT_S, {limit_ms // 1000} s)"
            )
        if now_ms - since_ms <= patience_ms:
            return None
        context, quiet_ms = self._context, now_ms - patience_ms
        if await still_comes(context.database, self._objects, run.run_id, since_ms=quiet_ms, now_ms=now_ms):
            return None
        return f", and nothing of its final checkpoint came for {duration(patience_ms)}"

    async def _release_unowned(self, connection: Connection, node_id: str) -> None:
        await lock_node(connection, node_id)
        if node_id in await unowned_serverless(connection):
            reason = "a serverless node without a run"
            await release_node(connection, self._context.ids, node_id, reason, now_ms=self._context.clock.now_ms())

    async def _still(self, connection: Connection, node_id: str) -> NodeRow | None:
        await self._context.leader.guard(connection)
        return await lock_node(connection, node_id)

    def _spoke_again(self, node: NodeRow, now_ms: int) -> bool:
        return node.heartbeat_ms is not None and now_ms - node.heartbeat_ms <= self._unreachable_ms


def _over(machine: Machine | None) -> str:
    """Why nothing runs on the machine any more; empty as long as something may."""
    if machine is not None and machine.interrupted:  # it may run again: what ran there before does not
        return f"its machine was bid for, and went to somebody who pays more: {machine.detail}"
    if machine is None or machine.status is MachineStatus.ENDED:
        return "its machine is gone, says the provider"
    if machine.status is MachineStatus.STOPPED:  # outbid, or its container has ended: it still costs its disk
        return f"its machine has stopped, says the provider: {machine.detail}"
    return ""
