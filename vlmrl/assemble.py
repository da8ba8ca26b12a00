"""From a config to a run: the one module that knows all the parts. It builds them and calls them."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlmrl import checkpoint, plugins, runfolder, sft
from vlmrl.checkpoint import Progress
from vlmrl.clock import Clock
from vlmrl.config import Config, SourceConfig
from vlmrl.data.loader import Loader, Source, eval_batches
from vlmrl.data.prompt import PromptMaker
from vlmrl.errors import UserError
from vlmrl.evaluation import evaluate
from vlmrl.interrupt import Interrupt
from vlmrl.models.loading import load_model
from vlmrl.policy import Policy, adamw
from vlmrl.report import build_report
from vlmrl.schema import PromptBatch
from vlmrl.scoring import Scorer
from vlmrl.tracking import Tracker
from vlmrl.trainer import Trainer
