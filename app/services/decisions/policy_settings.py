"""What decisions may read of the settings."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model.plan import STOP_AND_GO, ActionKind
from app.core.policy import AllpassRules, MoveCost, PolicyConfig
from app.core.tiers import BudgetRule
from app.settings import Settings


def allpass_rules(given: Mapping[str, float]) -> AllpassRules:
    """The rules with what the settings change; durations are whole milliseconds."""
    whole = {name: round(value) if name.endswith("_ms") else value for name, value in given.items()}
    return AllpassRules(**whole)  # type: ignore[arg-type]  # names and kinds were checked by the settings


def policy_config(settings: Settings) -> PolicyConfig:
    """What a decision may read of the settings, and what this world can enact."""
    made_before_broken = settings.moves == "make_before_break"
    merges = {ActionKind.MERGE, ActionKind.SPLIT} if settings.merging else set()
    return PolicyConfig(
        capabilities=STOP_AND_GO
        | {ActionKind.PREEMPT, *({ActionKind.MIGRATE} if made_before_broken else set())}
        | merges,
        serverless_budget_ms=_ms(settings.serverless_budget_s),
        serverless_limit=settings.serverless_limit,
        serverful_limit=settings.serverful_limit,
        idle_release_ms=_ms(settings.idle_release_s),
        tick_ms=_ms(settings.tick_s),
        horizon_ms=max(_ms(settings.pressure_horizon_s), _ms(settings.tick_s)),
        budget=BudgetRule(first_ms=_ms(settings.serverless_budget_s)),
        moves=MoveCost(
            _ms(settings.move_save_s),
            _ms(settings.move_load_s),
            _ms(settings.move_prepare_s) if made_before_broken else 0,
        ),
        rules=allpass_rules(settings.policy_rules),
        merging=bool(settings.merging),
        merge_modes=settings.merging,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
