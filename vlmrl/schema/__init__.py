"""The values on the main path, in the order in which the trainer makes them.

    Media -> Sample -> Prompt -> PromptBatch [P] -> Completion -> Rollouts [P, G] -> Verdict -> Rewards
    -> Advantages -> TrainBatch -> StepReport

Invariants: groups go by position (`[P, G]`: P prompts, G completions each); a Sample holds references
to media, never pixels; inside vlmrl a box is xyxy in the unit square of the ORIGINAL media and a time
is in seconds. A card converts once at load, a model family's native space converts once when a
completion is read (its `Frame`), a verifier never sees another space.
"""

from vlmrl.schema.geometry import Box, BoxTrack, Frame, Point, Polygon, Space, Span
from vlmrl.schema.prompts import Encoded, Prompt, PromptBatch, Seen
from vlmrl.schema.rollouts import (
    CUT,
    KILLED,
    ORIGINS,
    Advantages,
    Completion,
    ElsewhereError,
    Experts,
    FinishReason,
    Origin,
    Parsed,
    RemoteCompletion,
    RemoteVerdict,
    Rewards,
    Rollouts,
    Verdict,
)
from vlmrl.schema.samples import (
    MAX_CONFIGURATIONS,
    AnswerForm,
    Criterion,
    Demo,
    DemoTurn,
    Media,
    MediaKind,
    Role,
    RowReward,
    Sample,
    Truth,
    Turn,
    check_criteria,
)
from vlmrl.schema.template import Presence, Tag, Template
from vlmrl.schema.turns import Call, CallOutcome, Segment, Suffix
from vlmrl.schema.updates import MicroBatch, StepReport, TrainBatch
