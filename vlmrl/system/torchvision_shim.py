"""Let torchvision import next to a CPU build of torch; import it before torchvision.

PyPI has only CUDA builds of torchvision for Linux. Beside a CPU torch their compiled operators
cannot be loaded, and `import torchvision` then fails with "operator torchvision::nms does not
exist": it attaches shape functions to two operators that nobody declared. Declaring the two is
enough, since nothing in vlmrl calls them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _operators_load() -> bool:
    """Return whether torchvision's own operators load; this loads them just as torchvision would."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    libraries = sorted(Path(spec.origin).parent.glob("_C.*"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return bool(libraries)


_fragment: torch.library.Library | None = None
"""Kept alive: the declarations go away with this object."""

if torch.version.cuda is None and not _operators_load():
    _fragment = torch.library.Library("torchvision", "FRAGMENT")
    for _schema in _SCHEMAS:
        _fragment.define(_schema)
