"""Updates of the weights as CUDA graphs, one for each shape of batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.train_a_translator.corpus import Batch

Shape = tuple[int, ...]  # rows, width, labels
Update = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # that a replay reads
    loss: Tensor  # [], that it writes


class Graphs:
    """Graphs of the updates of one optimizer. A replay takes the host one launch, where an eager
    update takes one for each kernel.

    The first batch of a shape is computed eagerly, which loads kernels and makes the optimizer's
    state; the second is captured; from then on the graph is replayed. Graphs share memory: only one
    runs at a time, and it leaves nothing there but the loss.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.seen = set[Shape]()
        self.captured = dict[Shape, Captured]()
        self.memory = torch.cuda.graph_pool_handle()

    def __call__(self, update: Update, batch: Batch) -> Tensor:
        """update(batch), always the same function; returns the loss, []."""
        shape = (*batch.source.shape, len(batch.labels))
        if shape not in self.seen:
            self.seen.add(shape)
            return update(batch)
        if shape not in self.captured:
            self.captured[shape] = self.capture(update, batch)
        found = self.captured[shape]
        for held, given in zip(found.batch, batch, strict=True):
            held.copy_(given)
        found.graph.replay()
        return found.loss.clone()  # the next replay writes over it

    def capture(self, update: Update, batch: Batch) -> Captured:
        """The graph of an update, which is not computed yet."""
        held = Batch(*(part.clone() for part in batch))
        graph = torch.cuda.CUDAGraph()
        [group] = self.optimizer.param_groups
        group["capturable"] = True  # no sooner: an eager update would warn of it
        with torch.cuda.graph(graph, pool=self.memory):
            loss = update(held)
        group["capturable"] = False
        return Captured(graph, held, loss)
