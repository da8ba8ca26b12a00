"""All that goldens import from the package: when a module moves, only its line here changes."""

# ruff: noqa: F401  the other files take these names from here

from __future__ import annotations

from helpers.benchmark_runs import judged, opened
from helpers.losses import random_inputs, recipe_of, rewards_of, rollouts_of
from helpers.published import CASES
from vlmrl import plugins
from vlmrl.assemble import lifecycle  # loads what every run needs, once for all forks
from vlmrl.benchmarking.base import open_benchmark
from vlmrl.cli import main
from vlmrl.cli.app import app
from vlmrl.config import RewardConfig
from vlmrl.errors import UserError
from vlmrl.features.verify.attack_bench import judge_among_honest
from vlmrl.features.verify.attacks import ATTACKS
from vlmrl.features.verify.reference_answers import Honest, examples, lay_out, state_honestly
from vlmrl.scoring.combine import guard
from vlmrl.scoring.reward_components import resolve
from vlmrl.truths.json_form import to_json
