"""Kubernetes as the service finds it: its settings and how it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator, model_validator

from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.kubernetes.options import DEFAULT_ACCOUNT, DEFAULT_NAMESPACE, KubeOptions, KubeShape

if TYPE_CHECKING:
    from providers.kubernetes.adapter import KubernetesProvider

_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class KubernetesSettings(ProviderSettings):
    """One namespace of a cluster."""

    opens_account: ClassVar[frozenset[str]] = frozenset({"shapes"})

    shapes: list[KubeShape] = Field(
        default_factory=list,
        max_length=200,
        description="What machines may look like, as JSON; unset: the provider kubernetes is absent "
        "(docs/guides/kubernetes-pool.md)",
    )
    kubeconfig: str = Field("", description="File with the way into the cluster; it may call helper programs")
    in_cluster: bool = Field(False, description="Use the service account of the pod that Allpass runs in")
    context: str = Field("", description="Of the kubeconfig; unset: its current one")
    namespace: str = Field(DEFAULT_NAMESPACE, pattern=_DNS_LABEL, description="Where machines are")
    image: str = Field("", description="Image of all machines; unset: that of the job, or of the installation")
    service_account: str = Field(DEFAULT_ACCOUNT, min_length=1, description="Of machines; it needs no rights")
    pull_secrets: list[str] = Field(default_factory=list, description="Secrets that open registries, as JSON")
    grace_s: int = Field(300, ge=1, le=86_400, description="How long a pod that has to leave may still save")
    max_wait_s: float = Field(120.0, gt=0, description="A shape whose machine waits longer for a node is not offered")
    startup_s: float = Field(20.0, gt=0, description="How long a start takes, for weighing offers")
    startup_deadline_s: float = Field(900.0, gt=0, description="A machine that has not called home by then is given up")
    create_grace_s: float = Field(10.0, gt=0, description="So long a new job may be missing from the listing")

    @property
    def is_configured(self) -> bool:
        return bool(self.shapes)

    @property
    def is_real(self) -> bool:
        """They are one's own, and paid for already."""
        return False

    @field_validator("shapes")
    @classmethod
    def _differ(cls, shapes: list[KubeShape]) -> list[KubeShape]:
        names = [shape.name for shape in shapes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two shapes are named {twice[0]}: each needs a name of its own")
        return shapes

    @model_validator(mode="after")
    def _has_a_way_in(self) -> KubernetesSettings:
        if self.shapes and bool(self.kubeconfig) is self.in_cluster:
            raise ValueError(
                "with ALLPASS_KUBERNETES_SHAPES set either ALLPASS_KUBERNETES_KUBECONFIG (a file) or "
                "ALLPASS_KUBERNETES_IN_CLUSTER=true"
            )
        return self


def _build(settings: KubernetesSettings, tools: ProviderTools) -> KubernetesProvider:
    from providers.kubernetes.adapter import KubernetesProvider  # its client takes a while to load

    return KubernetesProvider(_options(settings, tools), clock=tools.clock)


def _options(settings: KubernetesSettings, tools: ProviderTools) -> KubeOptions:
    return KubeOptions(
        shapes=tuple(settings.shapes),
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        namespace=settings.namespace,
        image=settings.image,
        service_account=settings.service_account,
        pull_secrets=tuple(settings.pull_secrets),
        grace_s=settings.grace_s,
        max_wait_ms=round(settings.max_wait_s * 1000),
        startup_ms=round(settings.startup_s * 1000),
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
        timeout_s=tools.operation_timeout_s / 5,  # a create posts twice, and may have to look or to delete
    )


PLUGIN = ProviderPlugin(KubernetesSettings, _build)
