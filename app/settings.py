"""Every setting, with its default. Each is an environment variable `ALLPASS_<NAME>`; `.env.example` lists them all.

Durations say their unit. Those of providers are with the providers (`app/plugins.py` finds them). Nothing else in the
service reads the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core import pinned
from app.core.images.logins import RegistryLogins, read_logins
from app.core.images.reference import parse_image
from app.core.model.merge import MergeMode
from app.core.model.node import Tier
from app.core.policies import policy_names
from app.core.policy import AllpassRules
from app.core.topology import SwitchRule
from app.errors import InvalidInput
from app.plugins import FoundProvider, read_sections

RULE_NAMES = frozenset(field.name for field in fields(AllpassRules))

_LISTINGS_MISSED = 5  # an offer that so many listings in a row did not show is gone


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ALLPASS_", env_file=None, extra="ignore")
    _providers: tuple[FoundProvider, ...] = PrivateAttr(())

    # Where things are
    role: Literal["all", "api", "control"] = Field("all", description="What this process does")
    database_url: SecretStr = Field(description="postgresql://user:password@host:port/name")
    public_url: str = Field("http://127.0.0.1:7700", description="How clients and agents reach the API")
    private_addresses: bool = Field(
        False,
        description="Rent real machines although API or store have a private address: they are in that network too",
    )
    host: str = "127.0.0.1"
    port: int = 7700
    migrate_on_start: bool = Field(False, description="Bring the schema up to date before serving")
    metrics_token: SecretStr | None = Field(
        None, min_length=16, description="Who sends it as a bearer token may read /metrics; unset: only this host may"
    )
    client_file: Path | None = Field(None, description="Where the first API key is written, for clients on this host")

    # Objects
    objects_store: Literal["directory", "s3"] = Field("directory", description="A folder of this host, or S3")
    objects_dir: Path = Field(Path(".allpass/objects"), description="Root of the directory store")
    objects_url: str = Field("http://127.0.0.1:7701", description="How clients and agents reach the store")
    objects_signing_key: SecretStr = Field(
        SecretStr(""),
        validate_default=True,
        description="HMAC key of the directory store's signed URLs, at least 32 characters; required with it",
    )
    secret_key: SecretStr = Field(
        description="Node tokens and the key of secrets derive from it; at least 32 characters; keep a copy"
    )
    earlier_secret_keys: SecretStr = Field(
        SecretStr(""),
        description="Earlier values of it, separated by spaces: what they sealed still opens and is sealed anew",
    )
    user_code_as_root: bool = Field(
        False,
        description="Let code run as root where an agent that is root can give it no user of its own: it may read"
        " and change all that host has, other jobs included. Without it such a machine runs no code",
    )
    signed_url_ttl_s: int = 900
    idempotency_keep_s: float = Field(86_400.0, description="How long a repeated Idempotency-Key gets the first answer")
    max_bundle_bytes: int = 100 * 1024 * 1024
    openai_max_file_bytes: int = Field(
        100 * 1024 * 1024, ge=1024, description="Largest file of rows that the OpenAI-compatible API takes"
    )
    openai_serving_idle_s: float = Field(
        300.0, ge=1, description="A job that answers for a model ends when nobody has asked for so long"
    )
    openai_serving_at_once: int = Field(
        16, ge=1, le=256, description="Requests that a job that answers for a model writes answers to at once"
    )
    openai_serving_tokens: int = Field(
        0,
        ge=0,
        description="Tokens that those answers and their prompts may hold in memory together; 0: what fits on the GPU",
    )
    openai_serving_engine: Literal["auto", "transformers", "vllm"] = Field(
        "auto",
        description="What writes those answers: vllm, whose package is on the machine (auto: if it is, and a GPU), or"
        " Allpass's own engine on Transformers",
    )
    openai_wait_s: float = Field(
        600.0, ge=1, description="How long an answer of a model is waited for, the start of its machine included"
    )
    max_data_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Of a file of rows or a trace that is sent through the API"
    )
    simulation_jobs: int = Field(
        10_000, ge=1, lt=20_000, description="Jobs x policies x seeds of a simulation that is asked for over the API"
    )
    simulation_s: float = Field(60.0, gt=0, le=600, description="And how long it may take")
    max_object_bytes: int = 64 * 1024**3
    s3_endpoint: str | None = Field(None, description="http(s)://host[:port] of an S3 service; unset: AWS")
    s3_public_endpoint: str | None = Field(None, description="How agents reach it, where that differs")
    s3_region: str = "us-east-1"
    s3_bucket: str | None = Field(None, validate_default=True, description="It must exist; required with S3")
    s3_prefix: str = Field("", description="Keep everything below this prefix of the bucket")
    s3_access_key: SecretStr | None = Field(None, validate_default=True, description="Required with S3")
    s3_secret_key: SecretStr | None = Field(None, validate_default=True, description="Required with S3")
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto", description="Bucket in the path or in the host name; auto: in the host name on AWS only"
    )
    s3_timeout_s: float = Field(20.0, gt=0, description="Longest silence of the service")
    s3_attempts: int = Field(4, ge=1, le=10, description="Tries of one call")
    s3_connections: int = Field(16, ge=1, le=256, description="Calls at once")

    # Requests of one API key, in one process
    rate_limit_per_s: float = Field(200.0, ge=0, description="Requests per second of one API key; 0: no limit")
    rate_limit_burst: int = Field(1000, ge=1, description="How many of them may come at once")

    # Browsers that are signed in
    session_idle_s: float = Field(43_200.0, ge=60, description="A session ends when it was not used for so long")
    session_longest_s: float = Field(604_800.0, ge=60, description="And after so long, however it is used")

    # What agents send, of one node and in one process
    node_points_per_s: float = Field(5000.0, ge=0, description="Metric points per second of one node; 0: no limit")
    node_chunks_per_s: float = Field(
        100.0, ge=0, description="Pieces of logs per second of one node (256 KiB at most each); 0: no limit"
    )
    run_log_bytes: int = Field(
        256 * 1024 * 1024, ge=1024 * 1024, description="Of a run's longer log only beginning and end are stored"
    )

    # What runs leave in their working folder
    keep_bytes: int = Field(
        10 * 10**9, ge=0, le=10**15, description="Most that is kept of new and changed files of a run, unless named"
    )
    keep_named_bytes: int = Field(
        100 * 10**9, ge=0, le=10**15, description="Most that is kept of what a job's outputs name"
    )
    keep_every_s: float = Field(
        30.0, ge=1, le=86_400, description="How often a run's new files are looked for while it goes on"
    )

    # Database
    database_pool_size: int = 8
    database_timeout_s: float = 15.0

    # Records
    audit_retention_days: int = Field(
        400, ge=0, le=36_500, description="Entries of the audit log are deleted when they are older; 0: never"
    )

    # Content that nothing refers to
    collect_s: float = Field(
        600.0, gt=0, description="How often content that nothing refers to is deleted from the object store"
    )
    strays_s: float = Field(86_400.0, gt=0, description="How often the store is searched for what was never told of")

    # Control loop
    policy: str = Field("allpass", description="Who decides: see `allpass simulate --help` for the names")
    policy_rules: dict[str, float] = Field(
        default_factory=dict, description='What the policy allpass weighs with, as JSON: {"move_gain": 1.5}'
    )
    moves: Literal["make_before_break", "stop_and_go"] = Field(
        "make_before_break",
        description="Prepare the next machine while the job trains, or save, leave, and wait for a place",
    )
    merge_modes: str = Field(
        "",
        description="How jobs of the built-in recipe are trained as one: in-turn, together, or both, separated by a "
        "comma; empty: never",
    )
    move_prepare_s: float = Field(
        20.0, ge=0, description="How long the next machine is held while it prepares, for weighing a move"
    )
    move_timeout_s: float = Field(
        900.0,
        gt=0,
        description="A machine that has not prepared a move by then, and fetches nothing for so long, is given up; the "
        "job stays where it is",
    )
    move_save_s: float = Field(42.0, ge=0, description="What a planned move takes on the source, for weighing it")
    move_load_s: float = Field(42.0, ge=0, description="And on the target")
    defrag_every_s: float = Field(
        0.0,
        ge=0,
        le=2_592_000,
        description="How often own pools and rented machines are looked at for nodes to vacate by moves; 0: only when "
        "it is asked for. Of a pool only while a job waits that whole hosts would let begin; jobs on several machines "
        "come together where that is known to save twice what it costs",
    )
    defrag_moves: int = Field(20, ge=1, le=10_000, description="Most moves of one that begins by schedule")
    defrag_moves_at_once: int = Field(2, ge=1, le=100, description="Of its moves, how many may be under way")
    gang_switches: SwitchRule = Field(
        SwitchRule.FEWEST,
        description="How the switches of a job on several machines are chosen: fewest (one that holds all, else as few "
        "racks and switches as can be), or literal (Algorithm 2 of the SpotGPU paper as printed)",
    )
    pressure_horizon_s: float = Field(1800.0, gt=0, description="How far ahead deadlines press")
    tick_s: float = Field(60.0, description="Longest time between two decisions")
    ticks_keep_days: int = Field(
        7, ge=1, le=3_650, description="How long decisions are kept, to be explained and taken again"
    )
    ticks_keep_bytes: int = Field(
        2**28, ge=2**20, description="And at most so much of what they saw: the oldest go first"
    )
    poll_s: float = Field(1.0, description="Poll behind the wake-ups")
    leader_lease_s: float = 10.0
    serverless_budget_s: float = Field(300.0, description="F: how long a job may stay serverless, to begin with")
    serverless_limit: int = 50
    serverful_limit: int = 30
    idle_release_s: float = 0.0
    default_deadline_s: float = Field(86_400.0, description="Soft deadline of a job that names none")
    fault_budget: int = Field(3, description="Faults of machines or processes that a job survives")
    prices_s: float = Field(60.0, description="How often offers are refreshed")
    sweep_s: float = Field(30.0, description="How often providers' listings are compared with the database")
    meter_s: float = Field(10.0, description="How often the ledger is brought up to date")
    heartbeat_check_s: float = 5.0
    unreachable_after_s: float = Field(30.0, description="Silence after which a node counts as unreachable")
    lost_after_s: float = Field(120.0, description="Further silence after which its jobs go elsewhere")
    lifetime_margin_s: float = Field(
        900.0,
        ge=0,
        description="So long before a machine ends by itself its runs have moved; its last third is for the final save",
    )
    provider_recheck_s: float = Field(
        600.0, gt=0, description="How often refused credentials of a provider are tried again"
    )
    orphan_grace_s: float = Field(60.0, description="Age under which an unknown machine is left alone")

    # Provider operations
    operation_workers: int = Field(4, ge=1, description="Calls to one provider at once, by each control process")
    operation_lease_s: float = Field(15.0, description="Renewed while a call runs; a crash costs at most this")
    operation_timeout_s: float = 45.0

    # Agents
    agent_poll_s: float = 25.0
    uv_dir: Path | None = Field(
        None,
        description="A folder with further programs uv, for machines with other processors than the server's: files "
        "called uv-x86_64 or uv-aarch64, say",
    )
    join_token_ttl_s: float = Field(
        900.0,
        gt=0,
        description="How long a machine may take from its order to its first call; never less than its provider's "
        "deadline for starting",
    )
    alone_idle_s: int = Field(
        3_600,
        ge=1,
        le=30 * 86_400,
        description="A machine that reaches the service no more ends by itself after so long, if nothing trains there",
    )
    alone_training_s: int = Field(
        86_400, ge=1, le=30 * 86_400, description="And after so long, whatever trains there: what it saved stays"
    )
    gpu_look_s: int = Field(
        60,
        ge=0,
        le=86_400,
        description="How often a machine's agent looks whether its GPUs are still there; 0: only when it starts",
    )
    gpu_check_tiers: list[Tier] = Field(
        [Tier.MARKETPLACE, Tier.CONVENTIONAL],
        description="Tiers where each GPU has to calculate something before user code runs; an empty list: none",
    )
    probe_mb: int = Field(
        8,
        ge=0,
        le=64,
        description="So much is downloaded once where an offer promises a bandwidth, to measure it; 0: nothing",
    )
    stop_grace_s: float = Field(60.0, description="From SIGTERM to SIGKILL")
    spot_min_run_s: float = Field(
        60.0, ge=0, le=86_400, description="For how long a spot job has run at least before it has to leave"
    )
    elastic_rules: Literal["mended", "literal"] = Field(
        "mended",
        description="By which rules GPUs of elastic jobs are lent: those of the Cornucopia paper as they are written"
        " (literal), or with their gaps closed",
    )
    host_ranker: Literal["fewest-left", "spotgpu", "best-fit", "gradient"] = Field(
        "fewest-left",
        description="On which host of a pool a job begins that fits on several: with the fewest GPUs left, by the three"
        " criteria of the SpotGPU paper, where the least CPUs and GPUs stay free, or where fragments grow least",
    )
    eviction_rule: Literal["lost-work", "literal"] = Field(
        "lost-work",
        description="Which spot jobs leave for a guaranteed one: whose work is lost least, or the printed rule of the"
        " SpotGPU paper",
    )
    transfer_patience_s: float = Field(
        600.0,
        gt=0,
        description="A final checkpoint is waited for as long as something of it arrives: so long without is too long",
    )
    transfer_limit_s: float = Field(
        21_600.0,
        gt=0,
        description="No final checkpoint, and no fetching for a move, is waited for longer than this; its machine is "
        "paid meanwhile",
    )
    checkpoint_interval_s: int = 300
    checkpoint_keep_last: int = Field(
        3, ge=1, le=1000, description="How many of its newest checkpoints a job keeps that names no number"
    )
    node_image: str = Field(
        pinned.IMAGE, description="What rented machines run, unless an app names its own: `allpass images check`"
    )
    prepare_images: bool = Field(
        True, description="Have it built ahead, at providers that build a copy of an image before they run it"
    )
    image_build_timeout_s: float = Field(
        1800.0, gt=0, description="A build at a provider that takes longer has failed, and is tried again later"
    )
    registry_logins: SecretStr = Field(
        SecretStr(""),
        description='For images of private registries, as JSON: {"ghcr.io/team": {"user": "robot", "password": "..."}}',
    )

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._providers = read_sections(given, type(self).model_fields)

    @property
    def providers(self) -> tuple[FoundProvider, ...]:
        """Every provider that is installed, with its own settings: `ALLPASS_<NAME>_...`."""
        return self._providers

    @property
    def promised_cuda(self) -> Mapping[str, float]:
        """The oldest CUDA that a provider's offers promise, by provider; one that promises none is not in it."""
        return {one.name: one.promised_cuda for one in self._providers if one.promised_cuda}

    @property
    def offers_gone_after_ms(self) -> int:
        """An offer that no listing showed for this long is not rented, listed or compared with any more."""
        return _LISTINGS_MISSED * round(self.prices_s * 1000)

    @field_validator("policy")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in policy_names():
            raise ValueError(f"take one of: {', '.join(policy_names())}")
        return value

    @property
    def merging(self) -> frozenset[MergeMode]:
        """The ways in which jobs are merged; none: they are not."""
        return frozenset(MergeMode(word.strip()) for word in self.merge_modes.split(",") if word.strip())

    @property
    def logins(self) -> RegistryLogins:
        """Who fetches images of private registries."""
        return read_logins(self.registry_logins.get_secret_value())

    @field_validator("node_image")
    @classmethod
    def _image(cls, value: str) -> str:
        try:
            parse_image(value)
        except InvalidInput as error:
            raise ValueError(error.message) from None
        return value

    @field_validator("registry_logins")
    @classmethod
    def _logins(cls, value: SecretStr) -> SecretStr:
        read_logins(value.get_secret_value())
        return value

    @field_validator("merge_modes")
    @classmethod
    def _ways(cls, value: str) -> str:
        known = [mode.value for mode in MergeMode]
        for word in value.split(","):
            if word.strip() and word.strip() not in known:
                raise ValueError(f"{word.strip()!r} is no way to merge jobs; take {' or '.join(known)}, or both")
        return value

    @field_validator("policy_rules")
    @classmethod
    def _rules(cls, value: dict[str, float]) -> dict[str, float]:
        unknown = sorted(set(value) - RULE_NAMES)
        if unknown:
            raise ValueError(f"there is no rule {', '.join(unknown)}; the rules are {', '.join(sorted(RULE_NAMES))}")
        return value

    @field_validator("objects_signing_key", "s3_bucket", "s3_access_key", "s3_secret_key")
    @classmethod
    def _of_its_store(cls, value: SecretStr | str | None, info: ValidationInfo) -> SecretStr | str | None:
        """What the chosen object store cannot do without."""
        needed_by = "s3" if str(info.field_name).startswith("s3_") else "directory"
        given = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not given and info.data.get("objects_store") == needed_by:
            raise ValueError(f"required with ALLPASS_OBJECTS_STORE={needed_by}")
        return value
