"""The process whose threads run an engine."""

from __future__ import annotations

import os

from decoding import _C


class OwnProcess:
    """The process that this was made in. A child of fork() has none of its threads, and the locks
    as they were: whoever asks here first neither hangs nor waits for an answer."""

    def __init__(self) -> None:
        self._id = os.getpid()

    def __bool__(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raises decoding.Error in a child of fork()."""
        if not self:
            raise _C.Error(
                "this engine was made before the process forked, so its threads are not here: load "
                "the model and make an engine in this process"
            )
