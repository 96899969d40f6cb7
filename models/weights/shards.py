"""The shard of a model that one of several ranks has (tensor parallelism, Shoeybi et al. 2019).

A rank has some heads of each layer, some of the inner numbers of feed-forward, and some tokens of
the vocabulary. Of a weight that makes them it has rows, of one that reads them columns. It has all
norms, position tables, and biases of what is added up over ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from decoding.models.spec import LayerSizes, ModelSpec, StackSpec
from decoding.models.weights.checkpoint import check
from decoding.models.weights.lazy import LazyTensor, Weight, Weights, joined, part
from decoding.models.weights.shapes import shapes


def part_of(count: int, rank: int, ranks: int) -> range:
    """What a rank has of `count`: parts of one size, or of two that differ by 1. first_of() in
    csrc/kernels/collective/all_gather.h."""
    return range(count * rank // ranks, count * (rank + 1) // ranks)


@dataclass(frozen=True, kw_only=True)
class StackShard(StackSpec):
    """heads, kv_heads and ffn are those of the rank; vocab is that of the whole model."""

    own_tokens: range

    @property
    def tokens(self) -> range:
        return self.own_tokens


@dataclass(frozen=True)
class Cut:
    """What a rank has of a weight: numbers along one of its axes, range after range."""

    axis: int
    ranges: tuple[range, ...]


@dataclass(frozen=True)
class Shard:
    """What rank `rank` of `ranks` has of a model."""

    rank: int
    ranks: int

    def spec(self, whole: ModelSpec) -> ModelSpec:
        """Raises ValueError for a model that cannot be shared out among so many."""
        encoder = None if whole.encoder is None else self._stack("encoder", whole.encoder)
        return replace(whole, encoder=encoder, decoder=self._stack("decoder", whole.decoder))

    def weights(self, whole: ModelSpec, state: Mapping[str, Weight]) -> Weights:
        """The rank's part of each weight, read when it is asked for: of a tensor in a mapped file
        the pages of that part alone. Raises ValueError where one is missing or of another shape."""
        weights = state if isinstance(state, Weights) else Weights(state)
        expected = shapes(whole, lambda name: f"{name}.bias" in weights)
        own: dict[str, Weight] = {}
        for name in weights:
            tensor = own[name] = weights.lazy(name)
            if name in expected:
                check(name, tensor, expected[name])
                cut = self._cut(name, whole)
                own[name] = tensor if cut is None else sliced(tensor, cut)
        return Weights(own)

    def _stack(self, name: str, whole: StackSpec) -> StackShard:
        if whole.convolution is not None:
            raise ValueError(f"{self._asked}: a model with convolutions cannot be split")
        self._check(f"tokens of the {name}", whole.vocab)
        layers = [whole.sizes(layer) for layer in range(whole.layers)]
        for i, sizes in enumerate(layers):
            self._check(f"numbers in feed-forward of layer {i} of the {name}", sizes.ffn)
            self._check(f"heads in layer {i} of the {name}", sizes.heads)
            if sizes.kv_heads < self.ranks and self.ranks % sizes.kv_heads:
                raise ValueError(
                    f"{self._asked}: layer {i} of the {name} has {sizes.kv_heads} heads of keys "
                    f"and values, which {self.ranks} ranks cannot share: choose a divisor or a "
                    "multiple of them, or fewer ranks"
                )
        given = {field.name: getattr(whole, field.name) for field in fields(whole)}
        given |= {
            "heads": tuple(len(self._heads(sizes)) for sizes in layers),
            "kv_heads": tuple(len(self._kv_heads(sizes)) for sizes in layers),
            "ffn": tuple(len(self._part(sizes.ffn)) for sizes in layers),
        }
        return StackShard(**given, own_tokens=self._part(whole.vocab))

    @property
    def _asked(self) -> str:
        return f"tensor_parallel={self.ranks}"

    def _check(self, what: str, count: int) -> None:
        if count < self.ranks:
            raise ValueError(f"{self._asked}: there are only {count} {what}: use fewer ranks")

    def _part(self, count: int) -> range:
        return part_of(count, self.rank, self.ranks)

    def _kv_heads(self, sizes: LayerSizes) -> range:
        """Of fewer than there are ranks each rank has one, as others do."""
        if sizes.kv_heads >= self.ranks:
            return self._part(sizes.kv_heads)
        head = self.rank * sizes.kv_heads // self.ranks
        return range(head, head + 1)

    def _heads(self, sizes: LayerSizes) -> range:
        """Those whose keys and values the rank has; a part of them where others have these too."""
        group, own = sizes.heads // sizes.kv_heads, self._kv_heads(sizes)
        if sizes.kv_heads >= self.ranks:
            return range(own.start * group, own.stop * group)
        sharing = self.ranks // sizes.kv_heads
        part = part_of(group, self.rank % sharing, sharing)
        return range(own.start * group + part.start, own.start * group + part.stop)

    def _cut(self, name: str, whole: ModelSpec) -> Cut | None:
        """None: the rank has all of the weight."""
        match name.split("."):
            case ["output", _]:
                return Cut(0, (self._part(whole.decoder.vocab),))
            case [stack, "embed", "tokens"]:
                return Cut(0, (self._part(stack_of(whole, stack).vocab),))
            case [stack, "position_bias"]:
                spec = stack_of(whole, stack)
                return Cut(int(spec.bias_by_layer), (self._heads(spec.sizes(0)),))
            case [stack, "layers", layer, block, part, kind]:
                spec = stack_of(whole, stack)
                return self._layer_cut(block, part, kind, spec.sizes(int(layer)), spec)
        return None

    def _layer_cut(
        self, block: str, part: str, kind: str, sizes: LayerSizes, spec: StackSpec
    ) -> Cut | None:
        dim, ffn = spec.head_dim, self._part(sizes.ffn)
        queries, keys = self._heads(sizes), self._kv_heads(sizes)
        match block, part:
            case _, "qkv":
                return Cut(0, heads_in(dim, queries, (sizes.heads, keys), (sizes.kv_heads, keys)))
            case _, "q":
                return Cut(0, heads_in(dim, queries))
            case _, "kv":
                return Cut(0, heads_in(dim, keys, (sizes.kv_heads, keys)))
            case _, "out":
                return Cut(1, heads_in(dim, queries)) if kind == "weight" else None
            case _, "up":
                gate = (shifted(ffn, sizes.ffn),) if spec.gated else ()
                return Cut(0, (ffn, *gate))
            case _, "down":
                return Cut(1, (ffn,)) if kind == "weight" else None
        return None


def stack_of(spec: ModelSpec, name: str) -> StackSpec:
    stack = spec.encoder if name == "encoder" else spec.decoder
    assert stack is not None
    return stack


def heads_in(dim: int, first: range, *behind: tuple[int, range]) -> tuple[range, ...]:
    """The rows of heads in a weight that makes several things, one behind the other. behind: how
    many heads the thing before has, and those to take of the next one."""
    ranges, start = [first], 0
    for before, heads in behind:
        start += before
        ranges.append(shifted(heads, start))
    return tuple(range(each.start * dim, each.stop * dim) for each in ranges)


def shifted(numbers: range, by: int) -> range:
    return range(numbers.start + by, numbers.stop + by)


def sliced(tensor: LazyTensor, cut: Cut) -> LazyTensor:
    """Tensors that are the same numbers stay so: token tables that are output projections too."""
    if cut.axis == 0:
        found = joined(*(rows for each in cut.ranges for rows in rows_of(tensor, each)))
    else:
        [numbers] = cut.ranges
        found = part(tensor, cut.axis, numbers)
    return replace(found, key=(tensor.key, cut))


def rows_of(tensor: LazyTensor, rows: range) -> list[LazyTensor]:
    """Of a tensor that is made of parts, those that hold them."""
    found, first = [], 0
    for each in tensor.parts or (tensor,):
        begin, end = max(rows.start - first, 0), min(rows.stop - first, each.shape[0])
        if begin < end:
            found.append(part(each, 0, range(begin, end)))
        first += each.shape[0]
    return found
