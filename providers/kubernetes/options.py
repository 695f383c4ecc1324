"""How one namespace of a cluster is used, and the shapes that machines have there."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

NAME = "kubernetes"
DEFAULT_NAMESPACE, DEFAULT_ACCOUNT = "allpass", "allpass-machine"
_NAME = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
_QUEUE = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"
_PRIORITY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"


class KubeToleration(BaseModel):
    """As in a pod's spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field("", max_length=316)
    operator: str = Field("Equal", pattern="^(Equal|Exists)$")
    value: str = Field("", pattern=_LABEL_VALUE)
    effect: str = Field("", pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")

    def body(self) -> dict[str, str]:
        return {name: value for name, value in self.model_dump().items() if value}


class KubeShape(BaseModel):
    """A kind of machine: what its pod asks for, and where it may run.

    `queue`: of Kueue; its jobs begin suspended, and wait there. `lifetime_s`: they end after that. `most`: so many at a
    time; None: as many as fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=_NAME)
    gpu_type: str = Field(min_length=1, max_length=64)
    gpu_count: PositiveInt = Field(1, le=64)
    gpu_memory_gb: PositiveInt = Field(le=10_000)
    gpu_resource: str = Field("nvidia.com/gpu", pattern=_LABEL_KEY)
    cpus: PositiveInt = Field(le=4_096)
    memory_gb: PositiveInt = Field(le=100_000)
    node_selector: dict[str, str] = Field(default_factory=dict, max_length=32)
    tolerations: list[KubeToleration] = Field(default_factory=list, max_length=32)
    queue: str = Field("", pattern=_QUEUE)
    priority_class: str = Field("", pattern=_PRIORITY)
    lifetime_s: PositiveInt | None = Field(None, le=31_536_000)
    most: PositiveInt | None = Field(None, le=100_000)


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """`kubeconfig` empty: from within the cluster. `image`: in place of the one that is asked for; empty: that one.

    `grace_s`: how long a pod that is told to end may still save. `max_wait_ms`: a machine that waits longer than this
    for a node keeps its shape from being offered. `finished_s`: how long what has ended is kept, for whoever looks.
    """

    shapes: tuple[KubeShape, ...]
    kubeconfig: str = ""
    context: str = ""
    namespace: str = DEFAULT_NAMESPACE
    image: str = ""
    service_account: str = DEFAULT_ACCOUNT
    pull_secrets: tuple[str, ...] = ()
    grace_s: int = 300
    max_wait_ms: int = 120_000
    finished_s: int = 3_600
    startup_ms: int = 20_000
    startup_deadline_ms: int = 900_000
    create_grace_ms: int = 10_000
    page: int = 500
    timeout_s: float = 10.0
