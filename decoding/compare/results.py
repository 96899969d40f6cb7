"""The findings of a comparison: plain numbers, and the JSON file that holds them.

An unknown number is NaN here and null in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Ceilings:
    """The measured peak rates of a machine with weights of one type.

    bandwidth: bytes a second from memory. flops: twice the multiply-adds in a second. cached: bytes
    a second from the second-level caches. launch: seconds from one kernel of a CUDA graph to the
    next that depends on it, 0 on a CPU.
    """

    bandwidth: float
    flops: float
    cached: float = math.nan
    launch: float = 0.0


@dataclass(frozen=True)
class Machine:
    """The place and time of a measurement. threads: CPU threads of every engine, 0 on a GPU.
    ceilings: by type of weights, of those threads together."""

    name: str
    flags: str
    threads: int
    commit: str
    date: str
    ceilings: dict[str, Ceilings]


@dataclass(frozen=True)
class Difference:
    """A line that two engines answer differently. line: its number, from 1."""

    line: int
    source: str
    expected: str
    found: str


@dataclass(frozen=True)
class Check:
    """An engine's answers beside the reference's, on all lines of the text.

    reference: the engine and type that it is compared with: Hugging Face in float32, or else the
        first that answered.
    identical: lines with the very same tokens. bleu, chrf: against given references.
    largest, mean: difference of the answers' scores (log-probabilities by length, as the engines
        give them), in beam search and over the identical lines.
    differing: the first few lines that are not identical.
    error: the reason why there is no answer; "" where there is one.
    """

    engine: str
    dtype: str
    device: str
    beams: int
    reference: str
    sentences: int = 0
    identical: int = 0
    largest: float = math.nan
    mean: float = math.nan
    bleu: float = math.nan
    chrf: float = math.nan
    differing: tuple[Difference, ...] = ()
    error: str = ""

    @property
    def share(self) -> float:
        """The share of identical lines, 0 to 1."""
        return self.identical / self.sentences if self.sentences else math.nan


@dataclass(frozen=True)
class Run:
    """An engine's times in one type on one point of the grid. A step is one of the whole batch.

    length: new tokens of each row. source: tokens of the batch's sources or prompts together.
    p20, p50, p80: percentiles over the calls, whole ones divided by their steps, ms.
    rate: new tokens of the returned rows in a second. first_token: a call that generates one, ms.
    memory, loading: peak growth of the process while generating and while loading, or on a GPU of
        the memory that it holds there, over the memory that its libraries took, MB.
    roofline_bound: the least time of a step on this machine, ms, the encoder or prompt spread over
        the steps. bytes, flops: of such a step. bound_by: the longest part of the bound, "memory",
        "arithmetic" or "launches" (dependent kernel launches).
    nodes: of a step's CUDA graph, 0 elsewhere. isa: "" where a library does not tell.
    error: the reason why there are no times; "" where there are.
    """

    engine: str
    version: str
    isa: str
    dtype: str
    device: str
    batch: int
    beams: int
    length: int
    source: int
    p20: float = math.nan
    p50: float = math.nan
    p80: float = math.nan
    rate: float = math.nan
    first_token: float = math.nan
    memory: float = math.nan
    loading: float = math.nan
    roofline_bound: float = math.nan
    bytes: float = math.nan
    flops: float = math.nan
    bound_by: str = ""
    nodes: int = 0
    error: str = ""

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations for each byte that must be moved."""
        return self.flops / self.bytes

    @property
    def roofline_share(self) -> float:
        """The bound divided by the median; above 1 where weights stay in cache between steps."""
        return self.roofline_bound / self.p50


@dataclass(frozen=True)
class Comparison:
    """All findings. model, text: names, not paths. tokenisation: "in" or "out" of the times.
    rounds: turns of each engine. machines: by device, "cpu" or "cuda". finished: False where it was
    interrupted, so that later findings are missing."""

    model: str
    text: str
    tokenisation: str
    rounds: int
    machines: dict[str, Machine]
    checks: tuple[Check, ...] = ()
    runs: tuple[Run, ...] = ()
    finished: bool = True

    def to_json(self) -> str:
        return json.dumps(without_nan(asdict(self)), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Raises ValueError for a text that to_json() did not write."""
        try:
            found = dict(json.loads(text))
            machines = {
                device: made(
                    Machine,
                    {
                        **machine,
                        "ceilings": {
                            dtype: made(Ceilings, each)
                            for dtype, each in machine["ceilings"].items()
                        },
                    },
                )
                for device, machine in found["machines"].items()
            }
            checks = tuple(
                made(
                    Check,
                    {**check, "differing": tuple(made(Difference, d) for d in check["differing"])},
                )
                for check in found["checks"]
            )
            runs = tuple(made(Run, run) for run in found["runs"])
            found |= {"machines": machines, "checks": checks, "runs": runs}
            return cls(**found)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"this is no comparison's JSON: {error}") from error


def without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return value


def made(kind: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass, with NaN where the file has null."""
    floats = {field.name for field in fields(kind) if field.type == "float"}
    return kind(
        **{
            name: math.nan if value is None and name in floats else value
            for name, value in values.items()
        }
    )
