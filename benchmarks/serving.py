"""Requests that come and go: ours, transformers' continuous batching, CTranslate2 behind a batcher.

Clients send requests at random times (Poisson), whether or not earlier ones have been answered. See
benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.cases.serving import SERVING, Workload, save
from benchmarks.cases.workloads import SEED
from benchmarks.online import PROVIDERS
from benchmarks.online.base import Job
from benchmarks.online.client import Figures, Limits, Plan, measure, merged
from benchmarks.online.process import Host
from benchmarks.report.rows import write_rows
from decoding.compare.bounds import WIDTHS
from decoding.compare.engines import Settings
from decoding.compare.environment import Environment, environment
from decoding.compare.report.table import Table, number, times

SWEEP = (0.1, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1)  # shares of what is served of requests all at once
HTTP = (
    "--workloads demo-1 demo-4 gpt2-words "
    "--providers ours ours-http ctranslate2-http libretranslate-http huggingface-http"
)
LATE = 5  # milliseconds: then the clients were slow
DEFAULTS = {  # workloads, requests, and how many of those warm a provider up
    "cpu": ("marian-base-1 marian-base-4 gpt2-short", 32, 2),
    "cuda": ("marian-base-1 marian-base-4 gpt2-124M llama-1B", 256, 256),
}


@dataclass(frozen=True)
class Conditions:
    """What was measured. rows: that ran at once; 0: as many as the provider liked. rate: requests
    a second that clients sent; infinite: all at once. seconds: of the steady state, in each repeat.
    limits: those that goodput keeps."""

    workload: str
    provider: str
    version: str
    dtype: str
    rows: int
    threads: int
    rate: float
    seconds: float
    repeats: int
    limits: str


@dataclass(frozen=True)
class ServingRow(Environment, Figures, Conditions):
    """One provider at one rate: medians over the repeats."""

    def __str__(self) -> str:
        latencies = [
            f"{name} {number(p50)} ms, p99 {number(getattr(self, f'{name}_p99'))}"
            for name in ("ttft", "itl", "e2e")
            if math.isfinite(p50 := getattr(self, f"{name}_p50"))
        ]
        parts = [
            f"{self.workload:13} {self.dtype:8} {self.provider:11} {sent(self.rate):>9}",
            f"{number(self.served):>6} requests/s {number(self.tokens):>7} tokens/s",
            f"goodput {number(self.goodput)}/s",
            *latencies,
            *([f"clients {number(self.late_p99)} ms late"] if self.late_p99 > LATE else []),
            *([f"{self.unanswered} of {self.requests} unanswered"] if self.unanswered else []),
        ]
        return " | ".join(parts)


def sent(rate: float) -> str:
    return f"at {number(rate)}/s" if math.isfinite(rate) else "all at once"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows: list[ServingRow] = []
    failed = False
    for name in options.workloads:
        jobs = SERVING[name].draw(options.requests, options.text)
        with tempfile.TemporaryDirectory() as folder:
            model = save(SERVING[name].model, Path(folder))
            for provider in options.providers:
                try:
                    for row in measured(options, name, jobs, provider, model):
                        print(row, flush=True)
                        rows.append(row)
                        if options.output:
                            write_rows(rows, options.output)
                except Exception as error:  # the others' rows are worth having all the same
                    failed = True
                    print(f"{name} {provider}: {type(error).__name__}: {error}", file=sys.stderr)
    print(table(rows).text(), *compared(rows), sep="\n")
    return int(failed)


def measured(
    options: argparse.Namespace, name: str, jobs: Sequence[Job], provider: str, model: Path
) -> Iterator[ServingRow]:
    """The rows of a provider at all rates; none, with a word on it, where it cannot do this."""
    workload, kind = SERVING[name], PROVIDERS[provider]
    dtype = options.dtype or workload.dtypes[options.device]
    if dtype not in kind.engine.dtypes[options.device] or not kind.serves(
        jobs[0], has_encoder=workload.has_encoder
    ):
        print(f"{name} {provider}: not in {dtype} on {options.device}, or not this search")
        return
    settings = Settings(options.device, dtype, options.threads)
    plan = make_plan(options, workload)
    with Host(provider, model, settings, options.rows) as host:
        host.run(measure, jobs[: options.warm_up], plan)
        rates = list(options.rates)
        while rates:
            plan, repeats = replace(plan, rate=rates.pop(0)), []
            for _ in range(options.repeats):
                plan = replace(plan, seed=plan.seed + 1)  # the same for every provider
                repeats.append(host.run(measure, jobs, plan))
            found = merged(repeats)
            if options.sweep and math.isinf(plan.rate):
                rates = [share * found.served for share in SWEEP]
            yield ServingRow(
                workload=name,
                provider=provider,
                version=host.version,
                dtype=dtype,
                rows=options.rows or 0,
                threads=options.threads,
                rate=plan.rate,
                seconds=plan.seconds if math.isfinite(plan.rate) else math.nan,
                repeats=options.repeats,
                limits=str(plan.limits),
                **asdict(found),
                **asdict(environment(options.device)),
            )


def make_plan(options: argparse.Namespace, workload: Workload) -> Plan:
    """For all requests at once."""
    return Plan(
        rate=math.inf,
        seconds=options.seconds,
        lead=options.seconds / 2,
        patience=options.patience,
        seed=SEED,
        limits=replace(workload.limits[options.device], **dict(options.limits)),
        stream=workload.stream,
    )


def table(rows: Sequence[ServingRow]) -> Table:
    """Latencies are milliseconds."""
    names = ["served", "tokens", "goodput"]
    names += [f"{kind}_{percent}" for kind in ("ttft", "itl", "e2e") for percent in ("p50", "p99")]
    head = ["", *(name.replace("_", " ") for name in names)]
    lines = [
        [
            f"{row.workload} {row.dtype}, {row.provider} {sent(row.rate)}",
            *(number(getattr(row, name)) for name in names),
        ]
        for row in rows
    ]
    return Table(head, lines)


def compared(rows: Sequence[ServingRow]) -> Iterator[str]:
    """How many times as much of ours as of each other provider, both at the best of their rates.
    Others' servers are compared with ours, engines with the engine."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        found = best.setdefault((row.workload, row.provider), {"tokens": 0.0, "goodput": 0.0})
        for name in found:
            found[name] = max(found[name], getattr(row, name))
    for (workload, provider), theirs in best.items():
        name = "ours-http" if provider.endswith("-http") and provider != "ours-http" else "ours"
        ours = best.get((workload, name))
        if ours and provider != name:
            ratios = {what: ours[what] / (theirs[what] or math.nan) for what in ours}
            said = ", ".join(f"{times(ratio) or '-'} times the {n}" for n, ratio in ratios.items())
            yield f"{workload}: {name} has {said} of {provider}"
            yield at_equal_p99([row for row in rows if row.workload == workload], name, provider)


def at_equal_p99(rows: Sequence[ServingRow], name: str, provider: str) -> str:
    """What both serve at their rates whose p99 is at most that of ours at the best of its rates.
    name: of ours."""
    best = max((row for row in rows if row.provider == name), key=lambda row: row.served)
    theirs = [row for row in rows if row.provider == provider and row.e2e_p99 <= best.e2e_p99]
    served = max((row.served for row in theirs), default=0.0)
    found = f"{best.workload}: within p99 {number(best.e2e_p99)} ms {name} serves"
    ratio = times(best.served / (served or math.nan)) or "-"
    return f"{found} {number(best.served)}/s, {ratio} times {provider}'s {number(served)}/s"


def rate(text: str) -> float:
    """For a command line."""
    return math.inf if text == "all" else float(text)


def limit(text: str) -> tuple[str, float]:
    """For a command line: "ttft=0.5"."""
    name, _, seconds = text.partition("=")
    if name not in (each.name for each in fields(Limits)):
        raise argparse.ArgumentTypeError(f"a limit is ttft, tpot or e2e=SECONDS, got {text!r}")
    return name, float(seconds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    add = parser.add_argument
    add("--device", choices=list(DEFAULTS), default="cpu")
    add("--http", action="store_true", help=f"shorthand for {HTTP}, which need --text")
    add("--dtype", choices=list(WIDTHS), help="default: that of the workload on the device")
    add("--workloads", nargs="+", choices=SERVING)
    add("--providers", nargs="+", choices=PROVIDERS, default=list(PROVIDERS))
    add(
        "--rates",
        nargs="+",
        type=rate,
        metavar="RATE",
        help=f"requests a second, or all (at once); default: all, and then {SWEEP} of its rate",
    )
    add("--text", nargs="*", type=Path, default=[], metavar="PREFIX", help="as of quality.py")
    add("--requests", type=int, help="that are drawn; where more are sent they come again")
    add("--seconds", type=float, default=10, help="of each rate, after half as many dropped")
    add("--patience", type=float, default=60, help="seconds until answers are given up")
    add("--repeats", type=int, default=1, help="of each rate")
    add("--limits", nargs="+", type=limit, default=[], metavar="ttft=0.5", help="seconds")
    add("--rows", type=int, help="that run at once, a beam each; a batcher's batch")
    add("--threads", type=int, default=2, help="of every provider's engine on a CPU")
    add("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    workloads, requests, options.warm_up = DEFAULTS[options.device]
    if options.http:
        workloads, _, providers = HTTP.partition(" --providers ")
        workloads = workloads.removeprefix("--workloads ")
        options.providers = providers.split()
    options.workloads = options.workloads or workloads.split()
    options.requests = options.requests or requests
    options.sweep = options.rates is None
    options.rates = options.rates or [math.inf]
    return options


if __name__ == "__main__":
    sys.exit(main())
