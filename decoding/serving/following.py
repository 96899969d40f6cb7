"""The engines of ranks that follow rank 0's."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from decoding import _C
from decoding.serving.process import OwnProcess

WAIT = 0.1  # seconds between two looks whether Ctrl-C was pressed


class Following:
    """In place of a Dispatcher on a rank that is not the first: all that rank 0's engine does, its
    own does too.

    engine: bound.
    """

    def __init__(self, engine: _C.Engine) -> None:
        self.process, self.lock = OwnProcess(), threading.RLock()
        self._engine: _C.Engine | None = engine
        self._failure: BaseException | None = None

    @property
    def closed(self) -> bool:
        return self._engine is None

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def check(self) -> NoReturn:
        raise ValueError(
            "the Engine of a model with tensor_parallel takes requests on rank 0 alone: where "
            "model.rank is another, call close(), which waits until rank 0's engine is closed"
        )

    def submit(self, request: object, *given: Any, **how: Any) -> NoReturn:
        self.check()

    def cancel(self, id: int) -> None:
        """There is none."""

    def stats(self) -> dict[str, Any]:
        self.check()

    def close(self, drain: bool) -> None:
        """Waits until rank 0's engine is closed; without `drain` it ends that, too. Raises
        decoding.Error where a rank has ended before."""
        if not self.process:
            return
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            while drain and not engine.follow(WAIT):
                pass
        except _C.Error as error:
            self._failure = error
            raise
        finally:
            engine.close(drain)
