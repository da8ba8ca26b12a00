"""Rollouts and advantages -> batches of micro-batches under a token budget.

Groups stay together (their prompt can be forwarded once) and denominators are fixed here, before
the first forward: how a batch is cut never changes the update.

Two groups of three, A and B, of which one completion of B is not kept; `.` is padding, a letter a token:

    plain micro-batch      BBBBBBBBb..       counted as rows * (longest prompt + longest completion):
                           BBBBBBBBbbb       each row has a copy of its group's prompt, and the group
                           AAAAAAaaa..       with the longest rows is first
                           AAAAAAaa...
                           AAAAAAaaaa.
    shared micro-batch     BBBBBBBB b bbb AAAAAA aaa aa aaaa
                           one row: each prompt once, and no padding

A group above the budget is cut between completions, and its prompt is computed in each of the parts. A
completion in chunks is as many rows; it counts once among completions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch

from vlmrl.schema import ORIGINS, Advantages, Completion, MicroBatch, Prompt, Rollouts, TrainBatch
from vlmrl.system import distributed


@dataclass(frozen=True)
class _Row:
    """One kept rollout with its numbers, [1] or one for each token, and its prompt's position."""

    position: int
    prompt: Prompt
    completion: Completion
    advantage: torch.Tensor
    weight: float
    extra: Mapping[str, torch.Tensor]

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids that follow the prompt."""
        return self.completion.following_ids

    @cached_property
    def lengths(self) -> tuple[int, int]:
        return len(self.prompt.encoded.ids), len(self.ids)

    def cut(self) -> Iterator[_Row]:
        """Yield what it is trained as: itself, or each of its chunks with the numbers of its tokens.

        Chunks know how many tokens all of them have, `completion_tokens`.
        """
        if not self.completion.chunks:
            yield self
            return
        end, whole = 0, torch.tensor([float(self.completion.num_tokens)])
        for sequence in self.completion.sequences:
            start, end = end, end + sequence.num_tokens
            tables = {"": self.advantage, **self.extra}
            own = {
                name: values if len(values) == 1 else _place(sequence, values[start:end])
                for name, values in tables.items()
            }
            value, extra = own.pop(""), {**own, "completion_tokens": whole}
            yield replace(self, completion=sequence, advantage=value, extra=extra)

    def place(self, values: torch.Tensor) -> torch.Tensor:
        """Put numbers of the policy's tokens at their places behind the prompt, unless they are there."""
        return values if len(values) in (1, len(self.ids)) else _place(self.completion, values)


def _place(completion: Completion, values: torch.Tensor) -> torch.Tensor:
    """Return numbers of the policy's tokens at their places behind the prompt, 0 between them."""
    if completion.suffix is None:
        return values
    places = torch.tensor(completion.suffix.turns) >= 0
    return values.new_zeros(len(places)).masked_scatter(places, values)


@dataclass(frozen=True, slots=True)
class _Budget:
    """How many tokens a forward may compute, and how they are counted."""

    tokens: int
    sharing: bool

    def cost(self, rows: Sequence[_Row]) -> int:
        """Tokens that one forward of these rows computes."""
        prompts, completions = zip(*(row.lengths for row in rows), strict=True)
        if self.sharing:
            return sum({row.position: row.lengths[0] for row in rows}.values()) + sum(completions)
        return len(rows) * (max(prompts) + max(completions))


def pack_all(rollouts: Rollouts, micro_tokens: int, max_tokens: int) -> TrainBatch:
    """Return all rollouts as one update, with equal advantages and weights; see `pack`."""
    ones, kept = torch.ones(rollouts.shape), torch.ones(rollouts.shape, dtype=torch.bool)
    equal = Advantages(ones, kept, ones)
    (batch,) = pack(rollouts, equal, updates=1, micro_tokens=micro_tokens, max_tokens=max_tokens)
    return batch


def pack(
    rollouts: Rollouts,
    advantages: Advantages,
    *,
    updates: int,
    micro_tokens: int,
    max_tokens: int,
    sharing: bool = False,
    ranks: Collection[int] | None = None,
) -> list[TrainBatch]:
    """Return one TrainBatch per optimizer update, each with its own denominators.

    Groups are dealt, in order, to `updates` updates of near-equal size. Rollouts that are not
    kept are left out of forward, loss and denominators; an update without any kept rollout is
    left out of the list, so the list is empty when nothing is kept.

    `micro_tokens` bounds a micro-batch's rows * (longest prompt + longest completion): prompt
    copies and padding count. With `sharing`, for the shared forward, it bounds what that computes:
    every prompt once, no padding. A group that exceeds it by itself is cut between completions; a
    completion never is. `max_tokens` is the configured limit of a completion, for the loss.

    With `ranks`, the micro-batches are those of the prompts whose home they are, perhaps none; the
    denominators and the number of batches are those of all ranks.
    """
    if any(c.origin != "policy" for group in rollouts.completions for c in group):
        known = _origins(rollouts, advantages.kept, ranks)
        advantages = replace(advantages, extra={**advantages.extra, **known})
    groups = [_rows(rollouts, advantages, p, ranks) for p in range(len(rollouts.completions))]
    batches = []
    for number in range(updates):
        start, stop = (len(groups) * n // updates for n in (number, number + 1))
        kept = [group for group in groups[start:stop] if group]
        if kept:
            rows = [row for group in kept for row in group]
            own = [
                [part for row in group for part in row.cut()]
                for group in kept
                if _is_own(group[0].prompt, ranks)
            ]
            batches.append(
                TrainBatch(
                    micro=tuple(map(_micro, _cuts(own, _Budget(micro_tokens, sharing)))),
                    num_tokens=sum(row.completion.num_tokens for row in rows),
                    num_rollouts=len(rows),
                    max_tokens=max_tokens,
                )
            )
    return batches


def rows_of(micro: MicroBatch, rows: torch.Tensor) -> MicroBatch:
    """Return these rows of a micro-batch, with the prompts that they need."""
    used, group = micro.group[rows].unique(return_inverse=True)
    tensors = {
        field.name: value[rows]
        for field in fields(micro)
        if isinstance(value := getattr(micro, field.name), torch.Tensor)
    }
    prompts = tuple(micro.prompts[i] for i in used.tolist())
    extra = {name: value[rows] for name, value in micro.extra.items()}
    of_rows = {
        name: tuple(values[row] for row in rows) if values else ()
        for name, values in (("suffixes", micro.suffixes), ("experts", micro.experts))
    }
    changed = {"prompts": prompts, "group": group, "extra": extra, **of_rows}
    return replace(micro, **{**tensors, **changed})


def recut(batch: TrainBatch, micro_tokens: int) -> TrainBatch:
    """Return the batch in smaller micro-batches, cut between completions until each fits."""
    parts = (part for micro in batch.micro for part in _halves(micro, micro_tokens))
    return replace(batch, micro=tuple(parts))


def fill(batch: TrainBatch, compute: Callable[[MicroBatch], Mapping[str, Any]]) -> TrainBatch:
    """Return the batch with what is computed of each micro-batch: fields, or else names of `extra`."""
    known = {field.name for field in fields(MicroBatch)}

    def change(micro: MicroBatch) -> MicroBatch:
        computed = compute(micro)
        extra = {name: value for name, value in computed.items() if name not in known}
        own: dict[str, Any] = {name: value for name, value in computed.items() if name in known}
        return replace(micro, **own, extra={**micro.extra, **extra})

    return replace(batch, micro=tuple(map(change, batch.micro)))


def num_tokens(micro: MicroBatch) -> int:
    """Return the tokens of the plain forward: rows * (longest prompt + longest completion)."""
    prompts = max(len(prompt.encoded.ids) for prompt in micro.prompts)
    return len(micro.group) * (prompts + int(micro.lengths.max()))


def _halves(micro: MicroBatch, micro_tokens: int) -> Iterator[MicroBatch]:
    if (rows := len(micro.group)) == 1 or num_tokens(micro) <= micro_tokens:
        yield micro
        return
    for part in torch.arange(rows).tensor_split(2):
        yield from _halves(rows_of(micro, part), micro_tokens)


def _is_own(prompt: Prompt, ranks: Collection[int] | None) -> bool:
    """Return whether these ranks train on the prompt, and so have what was written to it and is kept."""
    return ranks is None or prompt.home in ranks


def _rows(
    rollouts: Rollouts, advantages: Advantages, p: int, ranks: Collection[int] | None
) -> list[_Row]:
    rows = []
    own = _is_own(rollouts.batch.prompts[p], ranks)
    kept, weights = advantages.kept[p].tolist(), advantages.weights[p].tolist()
    for g, completion in enumerate(rollouts.completions[p]):
        if not kept[g]:
            continue
        if own and len(completion.logprobs) != len(completion.token_ids):
            raise ValueError(
                f"prompt {p}, completion {g}: {len(completion.token_ids)} tokens, "
                f"but {len(completion.logprobs)} sampling log-probs"
            )
        for sequence in completion.sequences if own else ():
            if (suffix := sequence.suffix) is None:
                continue
            pairs = zip(suffix.encoded.ids, suffix.turns, strict=True)
            if tuple(i for i, turn in pairs if turn >= 0) != sequence.token_ids:
                raise ValueError(f"prompt {p}, completion {g}: its turns are not its tokens")
        length = completion.num_tokens
        value = _of_tokens("values", advantages.values[p, g], length)
        extra = {
            name: _of_tokens(name, table[p, g], length) for name, table in advantages.extra.items()
        }
        rows.append(_Row(p, rollouts.batch.prompts[p], completion, value, weights[g], extra))
    return rows


def _of_tokens(name: str, values: torch.Tensor, length: int) -> torch.Tensor:
    """Return the number of a rollout [1], or its numbers by token [length], float32."""
    flat = values.reshape(-1).float()
    if 1 < len(flat) < length:
        raise ValueError(f"advantages: {name} has {len(flat)} tokens, a completion {length}")
    return flat if len(flat) == 1 else flat[:length]


def _origins(
    rollouts: Rollouts, kept: torch.Tensor, ranks: Collection[int] | None
) -> dict[str, torch.Tensor]:
    """Return `origin` [P, G], and `stored_logprobs` [P, G, T] of what the policy did not sample.

    They are those of kept rows, with `ranks` of the prompts whose home they are; of others 0.
    """
    origin = [[ORIGINS.index(c.origin) for c in group] for group in rollouts.completions]
    longest = max(c.num_tokens for group in rollouts.completions for c in group)
    stored = torch.zeros(*rollouts.shape, longest)
    for p, group in enumerate(rollouts.completions):
        own = _is_own(rollouts.batch.prompts[p], ranks)
        for g, completion in enumerate(group):
            if own and kept[p, g] and completion.origin != "policy":
                stored[p, g, : len(completion.logprobs)] = torch.tensor(completion.logprobs)
    return {"origin": torch.tensor(origin).float(), "stored_logprobs": stored}


def _cuts(groups: list[list[_Row]], budget: _Budget) -> Iterator[list[_Row]]:
    pieces: list[list[_Row]] = []
    for group in groups:
        if budget.cost(group) <= budget.tokens:
            pieces.append(group)
        else:
            pieces += _fill([[row] for row in group], budget)
    # Neighbours of like length waste the least padding; the longest come first, so that a lack of
    # memory shows at once.
    pieces.sort(key=lambda piece: budget.cost(piece) / len(piece), reverse=True)
    yield from _fill(pieces, budget)


def _fill(pieces: Sequence[list[_Row]], budget: _Budget) -> Iterator[list[_Row]]:
    current: list[_Row] = []
    for piece in pieces:
        if current and budget.cost(current + piece) > budget.tokens:
            yield current
            current = []
        current = current + piece
    if current:
        yield current


def _micro(rows: list[_Row]) -> MicroBatch:
    prompts = {row.position: row.prompt for row in rows}
    index = {position: i for i, position in enumerate(prompts)}
    ids = [torch.tensor(row.ids, dtype=torch.long) for row in rows]
    logprobs = [torch.tensor(row.completion.logprobs, dtype=torch.float32) for row in rows]
    lengths = torch.tensor([len(i) for i in ids])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    suffixes = tuple(row.completion.suffix for row in rows)
    experts = tuple(row.completion.experts for row in rows)
    if any(suffixes):
        turns = [
            torch.tensor(s.turns if s else [0] * len(i)) for s, i in zip(suffixes, ids, strict=True)
        ]
        mask = pad(turns, batch_first=True, padding_value=-1) >= 0
    return MicroBatch(
        prompts=tuple(prompts.values()),
        group=torch.tensor([index[row.position] for row in rows]),
        token_ids=pad(ids, batch_first=True),
        mask=mask,
        sampling_logprobs=pad(
            [_place(row.completion, own) for row, own in zip(rows, logprobs, strict=True)],
            batch_first=True,
        ),
        advantages=pad([row.place(row.advantage) for row in rows], batch_first=True),
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32),
        extra={
            name: pad([row.place(row.extra[name]) for row in rows], batch_first=True)
            for name in rows[0].extra
        },
        suffixes=suffixes if any(suffixes) else (),
        experts=experts if any(experts) else (),
    )


def even_out(batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """Return the batches with as many micro-batches as the rank with most: empty ones are added."""
    counts = distributed.gather([len(batch.micro) for batch in batches])
    if all(of_rank == counts[0] for of_rank in counts):
        return list(batches)
    some = next((batch.micro[0] for batch in batches if batch.micro), None)
    offered = distributed.gather(None if some is None else _make_empty(some))
    empty = next(micro for micro in offered if micro is not None)
    return [
        replace(batch, micro=(*batch.micro, *[empty] * (max(of_ranks) - len(batch.micro))))
        for batch, of_ranks in zip(batches, zip(*counts, strict=True), strict=True)
    ]


def _make_empty(micro: MicroBatch) -> MicroBatch:
    """Return one row of a one-token prompt in which no token carries loss."""
    prompt = micro.prompts[0]
    encoded = replace(
        prompt.encoded,
        ids=prompt.encoded.ids[:1],
        compact_ids=prompt.encoded.ids[:1],
        tensors={},
        position_ids=prompt.encoded.position_ids[:, :1],
        next_position=1,
    )
    return MicroBatch(
        prompts=(replace(prompt, encoded=encoded, media=()),),
        group=torch.zeros(1, dtype=torch.long),
        token_ids=torch.tensor([prompt.encoded.ids[:1]]),
        mask=torch.zeros(1, 1, dtype=torch.bool),
        sampling_logprobs=torch.zeros(1, 1),
        advantages=torch.zeros(1, 1),
        weights=torch.zeros(1),
        extra={name: torch.zeros(1, 1) for name in micro.extra},
    )
