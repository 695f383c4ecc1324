"""Which tasks are where, while a plan is searched for: changed by moves, and changed back."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.defragmentation.model import PackedNode, PackedTask


class PackedFleet:
    """Nodes and tasks by their index, with what is free on each node.

    Nodes with the same labels are of one kind. What makes no sense is in `left_out`, its nodes in no partition.
    """

    def __init__(self, nodes: Sequence[PackedNode], tasks: Sequence[PackedTask]) -> None:
        self.nodes, self.tasks = nodes, tasks
        self.free_gpus = [node.gpus for node in nodes]
        self.free_cpus = [node.cpus_milli for node in nodes]
        self.free_memory = [node.memory_bytes for node in nodes]
        self.on: list[list[int]] = [[] for _ in nodes]
        self.where = [-1] * len(tasks)
        self.log: list[tuple[int, int, int]] = []
        self._kind_labels = list(dict.fromkeys(node.labels for node in nodes))
        kind_of = {labels: kind for kind, labels in enumerate(self._kind_labels)}
        self.kind = [kind_of[node.labels] for node in nodes]
        self.kinds = self._kinds_of_tasks()
        self._broken: set[int] = set()
        self.left_out = self._settle()

    def move(self, task: int, target: int) -> None:
        """Takes what `task` needs from `target` and gives it back to where the task was; written into the log."""
        source = self.where[task]
        self._shift(task, target)
        self.log.append((task, source, target))

    def undo(self, length: int) -> None:
        """Takes back the moves behind the first `length` of the log, the last one first."""
        while len(self.log) > length:
            task, source, _ = self.log.pop()
            self._shift(task, source)

    def fits(self, task: int, node: int) -> bool:
        """Whether `node` has the room, and no task that has to be apart from this one. Labels are not looked at."""
        need = self.tasks[task]
        return (
            self.free_gpus[node] >= need.gpus
            and self.free_cpus[node] >= need.cpus_milli
            and self.free_memory[node] >= need.memory_bytes
            and (need.apart is None or all(self.tasks[other].apart != need.apart for other in self.on[node]))
        )

    def is_movable(self, node: int) -> bool:
        """Whether there are tasks on `node`, and none of them is locked."""
        on, tasks = self.on[node], self.tasks
        if not on:
            return False
        for task in on:  # noqa: SIM110 - asked of every node in every round: a generator takes twice the time
            if tasks[task].locked:
                return False
        return True

    def is_sound(self, node: int) -> bool:
        """Whether what is said of the node makes sense."""
        return node not in self._broken

    def occupied(self) -> list[int]:
        return [node for node, tasks in enumerate(self.on) if tasks and node not in self._broken]

    def _shift(self, task: int, target: int) -> None:
        source, need = self.where[task], self.tasks[task]
        self.on[source].remove(task)
        self._take(task, target)
        self.free_gpus[source] += need.gpus
        self.free_cpus[source] += need.cpus_milli
        self.free_memory[source] += need.memory_bytes

    def _take(self, task: int, node: int) -> None:
        need = self.tasks[task]
        self.where[task] = node
        self.on[node].append(task)
        self.free_gpus[node] -= need.gpus
        self.free_cpus[node] -= need.cpus_milli
        self.free_memory[node] -= need.memory_bytes

    def _kinds_of_tasks(self) -> list[tuple[int, ...]]:
        """By task, the kinds of nodes that have all the labels it requires."""
        known: dict[frozenset[str], tuple[int, ...]] = {}
        for requires in {task.requires for task in self.tasks}:
            known[requires] = tuple(k for k, labels in enumerate(self._kind_labels) if requires <= labels)
        return [known[task.requires] for task in self.tasks]

    def _settle(self) -> tuple[str, ...]:
        """Puts each task on its node, and finds what makes no sense."""
        index = {node.id: number for number, node in enumerate(self.nodes)}
        lost: list[str] = []
        for number, task in enumerate(self.tasks):
            if task.node_id not in index:
                lost.append(task.id)
                continue
            self._take(number, index[task.node_id])
            if _is_wrong(task.gpus, task.cpus_milli, task.memory_bytes):
                self._broken.add(index[task.node_id])
        for number in range(len(self.nodes)):
            if _is_wrong(self.free_gpus[number], self.free_cpus[number], self.free_memory[number]):
                self._broken.add(number)
        return (*lost, *(self.nodes[number].id for number in sorted(self._broken)))


def _is_wrong(gpus: float, cpus_milli: float, memory_bytes: float) -> bool:
    """Also of NaN, which is not at least zero."""
    return not (gpus >= 0 and cpus_milli >= 0 and memory_bytes >= 0)
