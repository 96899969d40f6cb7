"""What the rows of a step attend to, against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.support.active import active_sentences
from tests.support.attention import NOWHERE, put
from tests.support.pages import Pool, cells_of, deal, pages_of


def weights_reference(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The mean over the heads. q: [beams, N, D]; k: [Nkv, positions, D].

    Products are added up one by one: how exact a library's own sums are differs between machines.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // len(k), 0).to(wide)
    scores = torch.zeros(q.shape[1], len(q), k.shape[1], dtype=wide, device=q.device)
    for query, keys in zip(q.to(wide).unbind(-1), k.unbind(-1), strict=True):  # [beams, N], [N, p]
        scores += query.T[:, :, None] * keys[:, None, :]
    return (scores * scale).softmax(-1).mean(0)


def paged(keys: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys [Nkv, positions, D] of each sentence: in pages, and where they are."""
    like, longest = keys[0], max(k.shape[1] for k in keys)
    pages, (table,) = deal(len(keys), pages_of(longest))
    pool = Pool.poisoned(len(like), pages, like.shape[2])
    for i, k in enumerate(keys):
        own = k.transpose(0, 1)
        pool.write(cells_of(table, i, torch.arange(len(own))), own, own)
    return pool.k.to(like), table.to(like.device)


def check_weights(place: Place, threads: int, q: Tensor, k: Tensor) -> None:
    """q: [12, N, D], of which 9 rows are active; k: [Nkv, 269, D]; more is poisoned. Each sentence
    is at a step of its own, one of them at a prompt's."""
    lengths, beams, longest, total_rows = [5, 1, 70, 129, 64], 3, 133, 17
    active, numbers = [3, 0, 2], [2, 0, 3]
    keys = k.split(lengths, 1)
    k_pages, pages = paged(list(keys))
    y = poison(3, total_rows, longest).to(place.device)
    scale = q.shape[2] ** -0.5
    kernels.attention_weights(
        q,
        active_sentences([*active, NOWHERE], [*numbers, NOWHERE], NOWHERE).to(place.device),
        y,
        scale,
        beams,
        k_pages=k_pages,
        shared_pages=pages,
        shared_lengths=torch.tensor(lengths).int().to(place.device),
        state=torch.tensor([NOWHERE, len(active)]).int().to(place.device),
        isa=place.isa,
        threads=threads,
    )
    for i, (sentence, number) in enumerate(zip(active, numbers, strict=True)):
        if number == 0:
            continue
        seen = keys[sentence].contiguous()
        ours = y[number - 1, sentence * beams : (sentence + 1) * beams]
        mine = q[i * beams : (i + 1) * beams]
        assert_within_torch(weights_reference, ours[:, : seen.shape[1]], mine, seen, scale)
        assert (ours[:, seen.shape[1] :] == 0).all()
        y[number - 1, sentence * beams : (sentence + 1) * beams] = float("nan")
    assert y.isnan().all()  # nothing else was written


@pytest.mark.parametrize("dim", [1, 15, 32, 64, 80, 128, 256])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_weights_equal_torch(place: Place, threads: int, dim: int, kv_heads: int) -> None:
    q, k = put(place, random(12, 4, dim), random(kv_heads, 269, dim, seed=1))
    check_weights(place, threads, q, k)


def test_weights_of_keys_in_bfloat16(isa: str) -> None:
    check_weights(Place(isa), 2, random(12, 4, 40), random(2, 269, 40, seed=1).bfloat16())


def test_a_prompts_steps_leave_no_weights(place: Place) -> None:
    y = poison(1, 1, 4).to(place.device)
    q, (k_pages, pages) = random(1, 1, 8), paged([random(1, 4, 8)])
    kernels.attention_weights(
        q.to(place.device, place.dtype),
        active_sentences([0], 0, 0).to(place.device),
        y,
        1.0,
        1,
        k_pages=k_pages.to(place.device, place.dtype),
        shared_pages=pages.to(place.device),
        shared_lengths=torch.tensor([4]).int().to(place.device),
        state=torch.tensor([1, 1]).int().to(place.device),
        isa=place.isa,
        threads=1,
    )
    assert y.isnan().all()
