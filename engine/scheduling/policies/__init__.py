"""Scheduling policies by name."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.policies.baselines import FastServe, Orca, Sglang, Vllm
from engine.scheduling.policies.carousel import Carousel
from engine.scheduling.policy import Policy

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Carousel, Orca, Vllm, Sglang, FastServe)}


def make_policy(config: EngineConfig, costs: Costs) -> Policy:
    """Return the policy selected by `config`, for a machine with `costs`."""
    return POLICIES[config.scheduling_policy](config, costs)
