"""Teach vision, video and audio language models to perceive, by RL with rewards that can be checked."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the content folders rewards/, datasets/ and configs/ lie beside this package; in a
# wheel they lie inside it. Either way they import as vlmrl.rewards, vlmrl.datasets, vlmrl.configs.
_here = Path(__file__).parent
if not (_here / "rewards").is_dir():
    __path__.append(str(_here.parent))
