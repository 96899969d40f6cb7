"""The observer of a call: runs the caller's functions and passes tokens on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.common.device import Device
from decoding.engine.observer import Step
from decoding.generation.functions.histories import Histories, ObservedRows
from decoding.generation.functions.hooks import Hooks
from decoding.generation.streaming import TokenListener

if TYPE_CHECKING:
    from torch import Tensor


class CallObserver:
    """A StepObserver: see decoding.engine.observer."""

    def __init__(self, hooks: Hooks, listener: TokenListener | None, rows: ObservedRows) -> None:
        self.hooked = bool(hooks)
        self._hooks, self._listener, self._rows = hooks, listener, rows

    def begin(self, device: Device) -> None:
        self._histories, self._device = Histories(self._rows), device
        if self._listener is not None:
            self._listener.begin(self._rows)

    def before_mid(self, step: Step) -> None:
        self._hooks.process(self._hooks.before_mid, self._histories, step)

    def before_post(self, step: Step) -> None:
        self._hooks.process(self._hooks.before_post, self._histories, step)

    def ended(self, step: Step) -> Tensor | None:
        return self._hooks.ended(self._histories, step, self._rows.competing, self._device)

    def accepted(self, step: Step) -> None:
        before = self._histories.generated.copy()  # extend() moves rows
        self._histories.extend(step)
        if self._listener is not None:
            self._listener.accepted(step, before, self._histories.generated)
