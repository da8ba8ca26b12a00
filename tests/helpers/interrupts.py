"""Interrupts that come at a chosen moment of a run."""

from __future__ import annotations

from vlmrl.system.interrupt import Interrupt


def stop_after(steps: int) -> type[Interrupt]:
    """An interrupt that comes while step number `steps` (cold start and RL counted on) is in hand."""

    class StopAfter(Interrupt):
        looks = 0

        @property
        def asked(self) -> bool:  # type: ignore[override]
            self.looks += 1
            return self.looks >= steps

    return StopAfter
