"""Metrics under the names that dashboards of vLLM know."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

import decoding

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("of streams, from the request's arrival", SECONDS),
    "inter_token_latency_seconds": ("of streams, the mean of each piece's tokens", SECONDS),
    "e2e_request_latency_seconds": ("from a request's arrival to its last token", SECONDS),
    "request_queue_time_seconds": ("of waiting in front of the engine", SECONDS),
    "request_prefill_time_seconds": ("of streams, from the end of waiting to a token", SECONDS),
    "request_decode_time_seconds": ("of streams, from the first token to the last", SECONDS),
    "request_prompt_tokens": ("tokens that a request gave", TOKENS),
    "request_generation_tokens": ("tokens that a request was answered with", TOKENS),
}
COUNTERS = {
    "prompt_tokens": "tokens that were given",
    "generation_tokens": "tokens that were generated for answers",
}
# Of Engine.stats(): the metric, and what it is.
GAUGES = {
    "num_requests_running": ("running", "requests in the engine's batch"),
    "num_requests_waiting": ("waiting", "requests that wait for the engine"),
    "num_requests_swapped": ("swapped", "requests whose pages wait in memory of the host"),
}
TOTALS = {
    "num_preemptions": ("swaps", "how often a request was swapped out"),
    "prefix_cache_queries": ("prefix_queries", "tokens that the prefix cache was asked for"),
    "prefix_cache_hits": ("prefix_hits", "tokens of these that were found computed"),
    "engine_steps": ("steps", "steps of the engine"),
    "engine_tokens": ("tokens", "tokens that the engine has generated, for beams too"),
}


class Watched(Protocol):
    """What is asked of a model that is served. waiting: requests in front of its engine."""

    name: str
    engine: decoding.Engine | None
    metrics: ModelMetrics

    @property
    def waiting(self) -> int: ...


class Metrics:
    """All metrics of a server, in a registry of its own. responses: answers by path and status. For
    one event loop: prometheus_client's own counters have a lock each, and a short request counts a
    dozen."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self.registry = prefix, CollectorRegistry()
        self.responses = Counter[tuple[str, int]]()

    def watch(self, served: Sequence[Watched]) -> None:
        """Makes the metrics of each model."""
        for each in served:
            each.metrics = ModelMetrics()
        self.registry.register(RequestCollector(self._prefix, served, self.responses))
        self.registry.register(EngineCollector(self._prefix, served))


class ModelMetrics:
    """Those of one model's requests. buckets, sums: of each histogram; totals: of each counter;
    reasons: why results ended."""

    def __init__(self) -> None:
        self.buckets = {name: [0] * (len(limits) + 1) for name, (_, limits) in HISTOGRAMS.items()}
        self.sums = dict.fromkeys(HISTOGRAMS, 0.0)
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.reasons = Counter[str]()

    def observe(self, name: str, value: float) -> None:
        self.buckets[name][bisect_left(HISTOGRAMS[name][1], value)] += 1
        self.sums[name] += value

    def answered(self, began: float, prompt: int, generated: int, reasons: Iterable[str]) -> None:
        """Counts an answer. began: time.monotonic() of its arrival; reasons: of its results."""
        self.observe("e2e_request_latency_seconds", time.monotonic() - began)
        self.observe("request_prompt_tokens", prompt)
        self.observe("request_generation_tokens", generated)
        self.totals["prompt_tokens"] += prompt
        self.totals["generation_tokens"] += generated
        self.reasons.update(reasons)


class RequestCollector:
    """Tells what was counted."""

    def __init__(
        self, prefix: str, served: Sequence[Watched], responses: Mapping[tuple[str, int], int]
    ) -> None:
        self._prefix, self._served, self._responses = prefix, served, responses

    def collect(self) -> Iterator[Metric]:
        prefix, label = self._prefix, ["model_name"]
        for name, (help, limits) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"{prefix}:{name}", help, labels=label)
            for each in self._served:
                buckets = cumulative(each.metrics.buckets[name], limits)
                histogram.add_metric([each.name], buckets, each.metrics.sums[name])
            yield histogram
        for name, help in COUNTERS.items():
            counter = CounterMetricFamily(f"{prefix}:{name}", help, labels=label)
            for each in self._served:
                counter.add_metric([each.name], each.metrics.totals[name])
            yield counter
        said, label = "results of requests that were answered", [*label, "finished_reason"]
        counter = CounterMetricFamily(f"{prefix}:request_success", said, labels=label)
        for each in self._served:
            for reason, count in each.metrics.reasons.items():
                counter.add_metric([each.name, reason], count)
        yield counter
        label = ["path", "status"]
        counter = CounterMetricFamily(f"{prefix}:http_responses", "answers", labels=label)
        for (path, status), count in self._responses.items():
            counter.add_metric([path, str(status)], count)
        yield counter


class EngineCollector:
    """Asks the engines when somebody reads the metrics."""

    def __init__(self, prefix: str, served: Sequence[Watched]) -> None:
        self._prefix, self._served = prefix, served

    def collect(self) -> Iterator[Metric]:
        alive = [(each, each.engine) for each in self._served if each.engine is not None]
        found = [(each, engine.stats()) for each, engine in alive if is_alive(engine)]
        for kind, names in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, TOTALS)):
            for name, (key, help) in names.items():
                metric = kind(f"{self._prefix}:{name}", help, labels=["model_name"])
                for each, stats in found:
                    waiting = each.waiting if key == "waiting" else 0
                    metric.add_metric([each.name], stats[key] + waiting)
                yield metric
        used = GaugeMetricFamily(
            f"{self._prefix}:kv_cache_usage_perc", "share of pages in use", labels=["model_name"]
        )
        for each, stats in found:
            used.add_metric([each.name], stats["pages_used"] / max(1, stats["pages_total"]))
        yield used
        iterations = HistogramMetricFamily(
            f"{self._prefix}:iteration_tokens_total",
            "tokens that a step and the reading before it had, prompts' included",
            labels=["model_name"],
        )
        for each, stats in found:
            counts = stats["iterations"]
            buckets = cumulative(counts, [2**i for i in range(len(counts) - 1)])
            iterations.add_metric([each.name], buckets, stats["iteration_tokens"])
        yield iterations


def cumulative(counts: Sequence[int], limits: Sequence[float]) -> list[tuple[str, int]]:
    """A histogram's buckets: their upper limits and what is at or below. counts: of what is at or
    below each limit but above the one before, and of what is above all."""
    names = [*(str(float(limit)) for limit in limits), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def is_alive(engine: decoding.Engine) -> bool:
    return engine.failure is None and not engine.closed
