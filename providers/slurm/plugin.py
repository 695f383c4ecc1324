"""A Slurm cluster as the service finds it: its settings and how it is built."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.slurm.adapter import SlurmProvider
from providers.slurm.options import SlurmOptions
from providers.slurm.shapes import SlurmShape

_SHARE = 5  # of the time for one operation: a create takes four commands
_FOLDER = r"^(/[A-Za-z0-9_./-]{0,200})?$"


class SlurmSettings(ProviderSettings):
    """One cluster, whose commands this host has. Jobs are those of the user that the service runs as."""

    opens_account: ClassVar[frozenset[str]] = frozenset({"shapes"})

    shapes: list[SlurmShape] = Field(
        [],
        max_length=100,
        description="The machines to ask Slurm for, as JSON (docs/guides/slurm.md); none: the provider slurm is absent",
    )
    bin: str = Field("", pattern=_FOLDER, description="Folder of sbatch, squeue, scancel and sinfo; empty: as in PATH")
    conf: str = Field("", pattern=_FOLDER, description="Which slurm.conf they read; empty: the usual one")
    max_wait_s: float = Field(
        120.0, ge=0, le=86_400, description="A shape that would wait longer in the queue offers nothing"
    )
    scratch: str = Field(
        "/tmp",  # noqa: S108 - on the nodes
        pattern=r"^/[A-Za-z0-9_./-]{0,200}$",
        description="A folder of each node where machines keep what they work on",
    )
    log_dir: str = Field(
        "",
        pattern=_FOLDER,
        description="Where jobs write, a folder that the nodes share with this host; empty: nowhere",
    )
    setup: str = Field(
        "",
        max_length=2_000,
        description="Shell that a job runs first, on one line: . /etc/profile; module load python/3.11",
    )
    notice_s: int = Field(
        120,
        ge=10,
        le=3_600,
        description="So long before its time is up Slurm itself tells a machine; less if it is short",
    )
    startup_s: float = Field(15.0, gt=0, description="How long a machine takes to call once its job runs")
    startup_deadline_s: float = Field(
        300.0, gt=0, description="A machine that has not called by then, beside the wait in the queue, is given up"
    )
    create_grace_s: float = Field(60.0, gt=0, description="So long a new job may be missing from the queue")
    call_every_s: float = Field(0.2, ge=0, description="Least time between two commands, for all processes")

    @property
    def is_configured(self) -> bool:
        return bool(self.shapes)

    @property
    def is_real(self) -> bool:
        """Its machines are paid for already, and may well be in one network with the service."""
        return False

    @field_validator("shapes")
    @classmethod
    def _named_once(cls, value: list[SlurmShape]) -> list[SlurmShape]:
        names = [shape.name for shape in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two shapes are called {twice!r}: give each a name of its own")
        return value

    @field_validator("setup")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("it must be one line without control characters; separate commands by ;")
        return value


def options_of(settings: SlurmSettings, operation_timeout_s: float) -> SlurmOptions:
    """How the settings have the cluster used. No command of a whole operation may take longer than its part."""
    return SlurmOptions(
        shapes=tuple(settings.shapes),
        commands=settings.bin,
        conf=settings.conf,
        log_folder=settings.log_dir,
        scratch=settings.scratch,
        setup=settings.setup,
        max_wait_ms=round(settings.max_wait_s * 1000),
        startup_ms=round(settings.startup_s * 1000),
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
        notice_s=settings.notice_s,
        call_every_ms=round(settings.call_every_s * 1000),
        timeout_s=operation_timeout_s / _SHARE,
    )


def _build(settings: SlurmSettings, tools: ProviderTools) -> SlurmProvider:
    return SlurmProvider(options_of(settings, tools.operation_timeout_s), clock=tools.clock, pace=tools.pace)


PLUGIN = ProviderPlugin(SlurmSettings, _build)
