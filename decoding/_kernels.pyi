"""Each kernel alone, for tests and benchmarks; built in place, in no wheel.

The functions, whose docstrings say what they take, are in csrc/bindings/testing. Options and Error
are those of decoding._C.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
