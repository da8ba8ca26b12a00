"""Teach vision, video and audio language models to perceive, by RL with rewards that can be checked."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmrl.api import Run, evaluate, generate, load, score, sweep, train, verify

__version__ = "0.1.0"
DISTRIBUTION = "vlmrl-perception"
"""What pip installs, as in pyproject.toml; PyPI's `vlmrl` is another person's package of this import name."""

# In a checkout the content folders rewards/, datasets/ and configs/ lie beside this package; in a
# wheel they lie inside it. Either way they import as vlmrl.rewards, vlmrl.datasets, vlmrl.configs.
_here = Path(__file__).parent
for _other in _here.parent.glob("vlmrl-*.dist-info"):
    raise ImportError(
        f"PyPI's package 'vlmrl' ({_other.stem}) is another person's, and its files lie among those of "
        f"{DISTRIBUTION} in {_here}: pip uninstall vlmrl, then install {DISTRIBUTION} again"
    )
if not (_here / "rewards").is_dir():
    __path__.append(str(_here.parent))

_FUNCTIONS = ("Run", "evaluate", "generate", "load", "score", "sweep", "train", "verify")
"""What `vlmrl.api` has for users; it is imported when one of them is first asked for."""


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module("vlmrl.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
