"""Frozen towers: each medium is seen alone, and only once where what they found is kept.

What a tower computes of a medium differs in its last bits with the media that are computed beside
it: kernels are chosen by size. A frozen tower therefore always sees a medium alone, so that what was
kept equals to the bit what would be computed again, in any forward of any batch.

A projector that trains runs every time. What is kept then is what the tower's own modules returned:
the tower is called again with those modules returning it, so that transformers' own code around
them goes on to the projector.

                            projector frozen           projector trains
    computed once           tower and projector        the tower
    kept of a medium        its features               what the tower's modules returned
    computed in each pass   nothing                    the projector, on what is kept

What is kept goes at the end of the block `keeping` (a step), or stays in `KeptFeatures` beyond it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves, tree_map

from vlmrl.schema import Encoded

if TYPE_CHECKING:
    from vlmrl.models.base import Family

MEDIA_TOWERS = ("vision", "audio")
LIMIT = 2 * 2**30
"""Bytes of features that are kept; media beyond them are computed every time."""

Outputs = dict[str, list[Any]]
"""What modules of a tower returned, by path, call after call."""


class FrozenTowers:
    """The towers of one model, all of them frozen, and inside `keeping` what they found."""

    def __init__(self, towers: Mapping[str, tuple[str, ...]], projects: bool) -> None:
        """Take the family's towers, and whether the projector trains."""
        self.beyond: KeptFeatures | None = None
        """Where what is computed stays after a block; None: nowhere."""
        self._prefixes = [p for tower in MEDIA_TOWERS for p in towers.get(tower, ())]
        self._projector = towers.get("projector", ())
        self._projects = projects
        self._keeping = False
        self.checked = False
        """Whether the projector was seen to read what is kept, and nothing else; see `_check`."""
        self._forget()

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is computed of each medium until the end of this block."""
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False
            self._forget()

    def features(self, family: Family, model: object, prompts: Sequence[Encoded]) -> Any:
        """Return what `family.run_towers` does, each medium computed alone; None without media."""
        features = [
            [self._see(family, model, medium, key) for medium, key in self._media(family, model, p)]
            for p in prompts
        ]
        return family.join_features(features) if any(features) else None

    def _see(self, family: Family, model: Any, medium: Encoded, key: bytes) -> Any:
        features = self._kept.get(key)
        if features is None:
            beyond = self.beyond if self._keeping else None
            features = None if beyond is None else beyond.find(key, model.device)
            if features is None:
                features = self._compute(family, model, medium)
                if beyond is not None:
                    beyond.add(key, features)
            size = _size_of(features)
            if self._keeping and self._size + size <= LIMIT:
                self._kept[key] = features
                self._size += size
        return self._project(family, model, medium, features) if self._projects else features

    def _compute(self, family: Family, model: object, medium: Encoded) -> Any:
        """Return the features of a medium, or what the tower's modules returned if the projector trains."""
        modules = _modules(model, self._prefixes)
        modes = {module: module.training for module in modules.values()}
        with torch.no_grad():
            try:
                for module in modes:
                    module.eval()
                if not self._projects:
                    return family.run_towers(model, [medium])
                with _recording(modules, _modules(model, self._projector)) as outputs:
                    features = family.run_towers(model, [medium])
                self._check(features, self._project(family, model, medium, outputs))
                return outputs
            finally:
                for module, training in modes.items():
                    module.train(training)

    def _project(self, family: Family, model: object, medium: Encoded, outputs: Outputs) -> Any:
        with _replaying(_modules(model, self._prefixes), outputs):
            return family.run_towers(model, [medium])

    def _check(self, computed: object, replayed: object) -> None:
        """Raise RuntimeError if, of the first medium, the projector reads anything but what is kept."""
        pairs = () if self.checked else zip(_tensors(computed), _tensors(replayed), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            raise RuntimeError(f"the projector reads more than {self._prefixes} return")
        self.checked = True

    def _media(self, family: Family, model: Any, prompt: Encoded) -> list[tuple[Encoded, bytes]]:
        """Return the media of a prompt with their keys, which are of no use unless something is kept."""
        if not self._keeping:
            return [(medium, b"") for medium in family.media_of(model, prompt)]
        kind = model.device.type  # under autocast products are computed in another dtype
        dtype = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else ""
        if (id(prompt), dtype) not in self._seen:
            media = [(m, _key(m, dtype)) for m in family.media_of(model, prompt)]
            self._seen[id(prompt), dtype] = prompt, media
        return self._seen[id(prompt), dtype][1]

    def _forget(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._size = 0
        self._seen: dict[tuple[int, str], tuple[Encoded, list[tuple[Encoded, bytes]]]] = {}


class KeptFeatures:
    """What frozen towers found, in host memory from step to step; the longest unused goes first."""

    def __init__(self, limit: int) -> None:
        """Hold at most `limit` bytes."""
        self._limit, self._size = limit, 0
        self._kept: dict[bytes, Any] = {}

    def find(self, key: bytes, device: torch.device) -> Any:
        """Return what was found of a medium, on this device; None: it is not here."""
        if key not in self._kept:
            return None
        self._kept[key] = features = self._kept.pop(key)
        return _moved(features, device)

    def add(self, key: bytes, found: object) -> None:
        """Keep what was found of a medium, if it fits at all."""
        size = _size_of(found)
        if size > self._limit:
            return
        while self._size + size > self._limit:
            oldest = next(iter(self._kept))
            self._size -= _size_of(self._kept.pop(oldest))
        self._kept[key] = _moved(found, torch.device("cpu"))
        self._size += size


_INSTALLED: WeakKeyDictionary[Any, FrozenTowers] = WeakKeyDictionary()


def install(model: object, towers: FrozenTowers) -> None:
    """Let every forward of `model` take its features from `towers`.

    Several models may share them if their frozen weights are equal.
    """
    _INSTALLED[model] = towers


def frozen_towers_of(model: object) -> FrozenTowers | None:
    """Return what was installed for this model, if anything."""
    return _INSTALLED.get(model)


# ----------------------------------------------------------------------------------------- modules


def _modules(model: Any, prefixes: Sequence[str]) -> dict[str, torch.nn.Module]:
    """Return the modules below these prefixes by path; of a list of layers, every layer."""
    modules = {}
    for prefix in prefixes:
        path = prefix.removesuffix(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:  # one family's prefixes serve models that lack some of them
            continue
        if isinstance(module, torch.nn.ModuleList):
            modules.update({f"{path}.{name}": layer for name, layer in module.named_children()})
        else:
            modules[path] = module
    return modules


@contextlib.contextmanager
def _recording(
    modules: Mapping[str, torch.nn.Module], projector: Mapping[str, torch.nn.Module]
) -> Iterator[Outputs]:
    """Record what the modules return; it is complete at the end of the block.

    Only what the modules of the projector took, and what the last of `modules` returned, keeps its
    values: the other tensors are blanks of the same shape, for nothing but `modules` reads them.
    """
    outputs: Outputs = {path: [] for path in modules}
    taken: list[torch.Tensor] = []
    last = ""

    def record(path: str, module: torch.nn.Module) -> Any:
        forward = module.forward

        def recorded(*args: Any, **kwargs: Any) -> Any:
            nonlocal last
            out = forward(*args, **kwargs)
            outputs[path].append(_copied(out))
            last = path
            return out

        return recorded

    def watch(module: torch.nn.Module) -> Any:
        forward = module.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            taken.extend(_tensors((args, kwargs)))
            return forward(*args, **kwargs)

        return watched

    watched = {path: watch(module) for path, module in projector.items()}
    recorded = {path: record(path, module) for path, module in modules.items()}
    with _forwards(projector, watched), _forwards(modules, recorded):
        yield outputs
    read = {id(x) for x in (*taken, *_tensors(outputs.get(last)))}

    def blank(x: Any) -> Any:
        kept = id(x) in read or not isinstance(x, torch.Tensor)
        return x if kept else x.new_zeros(()).expand(x.shape)

    for path, calls in outputs.items():
        outputs[path] = tree_map(blank, calls)


def _copied(out: object) -> Any:
    """Return what a module returned so that what is written to its fields later is not seen."""
    return tree_map(lambda x: x, out)


def _tensors(features: object) -> list[torch.Tensor]:
    """Return all tensors in what modules returned, or in features."""
    if dataclasses.is_dataclass(features) and not isinstance(features, dict):
        features = [getattr(features, field.name) for field in dataclasses.fields(features)]
    return [x for x in tree_leaves(features) if isinstance(x, torch.Tensor)]


def _size_of(found: object) -> int:
    return sum(x.untyped_storage().nbytes() for x in _tensors(found))


def _moved(found: object, device: torch.device) -> Any:
    """Return what modules returned, or features, on a device; blanks stay as small as they are."""

    def move(x: object) -> Any:
        if not isinstance(x, torch.Tensor) or x.device == device:
            return x
        if x.untyped_storage().nbytes() == x.element_size() and x.numel() > 1:
            return torch.zeros((), dtype=x.dtype, device=device).expand(x.shape)
        return x.to(device)

    if dataclasses.is_dataclass(found) and not isinstance(found, dict | type):
        values = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
        return dataclasses.replace(found, **{n: tree_map(move, v) for n, v in values.items()})
    return tree_map(move, found)


@contextlib.contextmanager
def _replaying(modules: Mapping[str, torch.nn.Module], outputs: Outputs) -> Iterator[None]:
    """Let the modules return what was recorded, and compute nothing."""

    def replay(path: str) -> Any:
        calls = iter(outputs[path])
        return lambda *_, **__: _copied(next(calls))

    with _forwards(modules, {path: replay(path) for path in modules}):
        yield


@contextlib.contextmanager
def _forwards(
    modules: Mapping[str, torch.nn.Module], forwards: Mapping[str, Any]
) -> Iterator[None]:
    """Replace the forwards of the modules inside this block."""
    before = {path: module.__dict__.get("forward") for path, module in modules.items()}
    for path, module in modules.items():
        module.forward = forwards[path]
    try:
        yield
    finally:
        for path, module in modules.items():
            if (own := before[path]) is None:
                del module.forward
            else:
                module.forward = own


# -------------------------------------------------------------------------------------------- keys


def _key(medium: Encoded, dtype: str) -> bytes:
    """Return a digest of all that the tower sees of a medium."""
    digest = hashlib.blake2b(dtype.encode(), digest_size=32)
    for name in sorted(medium.tensors):
        value = medium.tensors[name].contiguous()
        digest.update(f"|{name} {value.dtype} {tuple(value.shape)}|".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.digest()
