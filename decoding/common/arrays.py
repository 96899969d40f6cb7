"""NumPy's arrays, of any numbers: a docstring or a comment has their type and shape."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
