"""The observer of a call: runs the caller's functions and passes tokens on."""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.engine.observer import Step
from decoding.generation.histories import Histories, ObservedRows
from decoding.generation.hooks import Hooks
from decoding.generation.streaming import TokenListener


class CallObserver:
    """A StepObserver: see decoding.engine.observer."""

    def __init__(self, hooks: Hooks, listener: TokenListener | None, rows: ObservedRows) -> None:
        self.hooked = bool(hooks)
        self._hooks, self._listener, self._rows = hooks, listener, rows

    def begin(self, device: torch.device) -> None:
        self._histories = Histories(self._rows, device)
        if self._listener is not None:
            self._listener.begin(self._rows)

    def before_mid(self, step: Step) -> None:
        self._hooks.process(self._hooks.before_mid, self._histories, step)

    def before_post(self, step: Step) -> None:
        self._hooks.process(self._hooks.before_post, self._histories, step)

    def ended(self, step: Step) -> Tensor | None:
        return self._hooks.ended(self._histories, step, self._rows.competing)

    def accepted(self, step: Step) -> None:
        before = self._histories.generated.clone()  # extend() moves rows
        self._histories.extend(step)
        if self._listener is not None:
            self._listener.accepted(step, before, self._histories.generated)
