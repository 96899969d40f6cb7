"""The process whose threads run an engine."""

from __future__ import annotations

import os

from decoding import _C

_current = [object()]  # another one in each child of fork(); os.getpid() would ask the system


def _forked() -> None:
    _current[0] = object()


os.register_at_fork(after_in_child=_forked)


class OwnProcess:
    """The process that this was made in. A child of fork() has none of its threads, and the locks
    as they were: whoever asks here first neither hangs nor waits for an answer."""

    def __init__(self) -> None:
        self._made_in = _current[0]

    def __bool__(self) -> bool:
        return self._made_in is _current[0]

    def check(self) -> None:
        """Raises decoding.Error in a child of fork()."""
        if not self:
            raise _C.Error(
                "this engine was made before the process forked, so its threads are not here: load "
                "the model and make an engine in this process"
            )
