"""One file is one environment: a world in which a policy acts turn by turn."""

from vlmrl.environments.base import Environment, Move, MoveOutcome, State
from vlmrl.schema import Box, Frame, Point, Sample
from vlmrl.tools import Part, Refused

__all__ = [
    "Box",
    "Environment",
    "Frame",
    "Move",
    "MoveOutcome",
    "Part",
    "Point",
    "Refused",
    "Sample",
    "State",
]
