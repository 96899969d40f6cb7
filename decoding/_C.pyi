"""The compiled engine. Tensors are contiguous; csrc/README.md has the shape letters.

A session on a GPU has its weights and its pool there, everything else on the CPU.
"""

from collections.abc import Sequence
from typing import overload

from torch import Tensor

from decoding.models.spec import EncoderSpec, ModelSpec

cuda_archs: str  # what there is machine code for, "80 90"; empty without CUDA
sources_hash: str  # of the C++ sources that the engine was built from

class Error(RuntimeError): ...

def isas() -> list[str]:
    """Instruction sets of this machine that the engine has code for, best first."""

def fill_panels(panels: Tensor, weight: Tensor, first: int, threads: int) -> bool:
    """Packs the rows of a weight [n, K] as outputs from `first` on of panels of its type
    (models/weights/panels.py). Parts of a weight come in order. Returns whether all numbers are
    finite."""

class training:
    """Operators of training and their gradients, a submodule. They write into tensors that the
    caller made, contiguous and all on one device: on a GPU on the current stream, on the CPU with
    torch's number of threads. T: float32, float16, bfloat16, on the CPU float64 too; R: what sums
    over T are kept in, float64 for float64, else float32. isa and threads are for tests: the
    instruction set and the number of threads on the CPU."""

    @staticmethod
    def cross_entropy(
        x: Tensor,
        labels: Tensor,
        losses: Tensor,
        softmax: Tensor,
        *,
        weight: Tensor | None = None,
        weight_sum: Tensor | None = None,
        ignored: int = -100,
        smoothing: float = 0.0,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the loss of each row, csrc/kernels/rows/cross_entropy.h.

        x: T [rows, classes]; labels: int64 [rows]; losses: R [rows]; softmax: R [rows, 2], for
        cross_entropy_backward. weight: R [classes], with its sum, weight_sum: R [1]. Raises
        IndexError for a label that is neither a class nor `ignored`; on a GPU the next call of
        these functions does, after one that has finished, and the row's loss is NaN.
        """
    @staticmethod
    def total_loss(
        losses: Tensor,
        labels: Tensor,
        total: Tensor,
        count: Tensor,
        *,
        mean: bool,
        weight: Tensor | None = None,
        ignored: int = -100,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the sum of losses, R [rows], and the sum of the weights of all labels that count;
        with `mean` the first is divided by the second. total, count: R [1]."""
    @staticmethod
    def cross_entropy_backward(
        x: Tensor,
        labels: Tensor,
        softmax: Tensor,
        upstream: Tensor,
        dx: Tensor,
        *,
        count: Tensor | None = None,
        weight: Tensor | None = None,
        weight_sum: Tensor | None = None,
        ignored: int = -100,
        smoothing: float = 0.0,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes upstream / count times the gradient of each row's loss to dx, which may be x.

        upstream: R [rows], or R [1] for all rows; count: R [1]. The gradient of a row whose label
        is no class is 0.
        """
    @staticmethod
    def norm(
        x: Tensor,
        y: Tensor,
        *,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        gamma: Tensor | None = None,
        beta: Tensor | None = None,
        sum: Tensor | None = None,
        mean: Tensor | None = None,
        rstd: Tensor | None = None,
        eps: float,
        rms: bool = False,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes norm(x + bias + residual) to y, and what is normed, rounded to T, to sum.

        x, residual, y, sum: T [rows, cols]; sum is None where there is neither bias nor residual.
        gamma, beta, bias: T [cols], or float32 beside two-byte T. mean, rstd: R [rows], for
        norm_backward; None where there is none. rms has no mean and no beta.
        """
    @staticmethod
    def norm_backward(
        s: Tensor,
        dy: Tensor,
        dx: Tensor,
        *,
        dsum: Tensor | None = None,
        gamma: Tensor | None = None,
        mean: Tensor | None = None,
        rstd: Tensor,
        dgamma: Tensor | None = None,
        dbeta: Tensor | None = None,
        dbias: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the gradients of `norm`: kernels/rows/norm.h. The same bits every time.

        s: T [rows, cols], what was normed (`sum`, or x); dsum: what comes to it from elsewhere.
        dx: T [rows, cols], the gradient of x and residual; dgamma, dbeta, dbias as gamma there,
        None where nobody asks. Without a mean it was an RMS norm.
        """
    @staticmethod
    def embed(
        ids: Tensor,
        table: Tensor,
        y: Tensor,
        *,
        positions: Tensor | None = None,
        at: Tensor | None = None,
        length: int = 0,
        scale: float = 1.0,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes dropout(scale * table[ids] + positions[at]) to y.

        ids, at: int64 [rows]; table: T [V, H]; positions: T [P, H]; y: T [rows, H]. Without `at` it
        is row % length. seed: int64 [1]; dropout: the probability of 0. Raises IndexError for an
        id or a position that is out of range; on a GPU as cross_entropy does, and the row is NaN.
        """
    @staticmethod
    def embed_backward(
        dy: Tensor,
        ids: Tensor,
        order: Tensor | None,
        dtable: Tensor,
        *,
        ignored: int = -1,
        scale: float = 1.0,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the sum of scale * dropout(dy) over the rows of each id to dtable, 0 at first.

        dy: T [rows, H]. ids: int64 [rows], ascending, where the row of ids[i] is order[i]: dtable
        is T [V, H], and its bits are the same every time. Without an order, on a GPU alone, they
        are those of the rows, and dtable is float32: rows are added in any order. Rows of the id
        `ignored` do not count. For positions: the same, with ids of positions and scale 1.
        """
    @staticmethod
    def softmax(x: Tensor, y: Tensor, *, isa: str = "", threads: int = 0) -> None:
        """Writes softmax(x) over the last axis to y. x, y: T [rows, cols]."""
    @staticmethod
    def softmax_backward(
        y: Tensor, dy: Tensor, dx: Tensor, *, isa: str = "", threads: int = 0
    ) -> None:
        """Writes y * (dy - sum(y * dy)) to dx, which may be dy. All: T [rows, cols]."""
    @staticmethod
    def dropout(
        x: Tensor, y: Tensor, *, p: float, seed: Tensor, isa: str = "", threads: int = 0
    ) -> None:
        """Writes 0 to y with probability p, else x / (1 - p); the gradient is the same of dy.

        x, y: T of one shape, which may be the same; seed: int64 [1]. Equal seeds drop the same
        elements, on every device.
        """

class Limits:
    """What the memory plan must hold: see decoding.Limits."""

    def __init__(
        self,
        *,
        batch: int,
        beams: int,
        source: int,
        prompt: int,
        target: int,
        candidates: int,
        finished: int = 0,
        controls: int = 0,
        attentions: int = 0,
        labels: int = 0,
        hidden: int = 0,
        phrases: int = 0,
        shortlist: int = 0,
    ) -> None: ...
    batch: int
    beams: int
    source: int
    prompt: int
    target: int
    candidates: int

class Buffer:
    """One line of the memory plan."""

    name: str
    type: str
    shape: list[int]
    offset: int
    bytes: int
    lifetime: list[int]

class Rules:
    """What every search obeys. Steps count from 1."""

    def __init__(
        self,
        *,
        max_new: int,
        min_new: int = 0,
        eos: Sequence[int] = (),
        pad: int = 0,
        banned: Sequence[int] = (),
        forced_last: Sequence[int] = (),
        renormalize: bool = False,
    ) -> None: ...

class Warpers:
    """What sampling leaves of the scores, beside each sentence's temperature, top_k and top_p."""

    def __init__(
        self,
        *,
        top_h: float = 0.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        epsilon: float = 0.0,
        eta: float = 0.0,
        keep: int = 1,
    ) -> None:
        """The defaults turn each off. keep: tokens that all but top_h leave at least."""

class Greedy:
    def __init__(self) -> None: ...

class Sampling:
    """Seeds, temperatures, top_k and top_p are those of the sentences."""

    def __init__(self) -> None: ...

class Beam:
    def __init__(
        self,
        *,
        length_penalty: float = 1.0,
        gnmt: bool = False,
        early_stopping: str = "no",
        capacity: int = 0,
        diversity_rate: float = 0.0,
        draws: bool = False,
    ) -> None:
        """early_stopping: "no", "yes" or "never". capacity: of a finished list; 0: one a beam.
        draws: candidates are drawn; the scores must be processed."""

class Diverse:
    """Group diverse beam search: `beam` within each of the groups, one after the other."""

    def __init__(self, beam: Beam, *, groups: int, penalty: float) -> None: ...

class Constrained:
    """Constrained beam search (kernels/search/constraints.h); needs controls, and limits
    with phrases=words."""

    words: int

    def __init__(
        self,
        beam: Beam,
        *,
        heights: Sequence[int],
        first_edge: Sequence[int],
        tokens: Sequence[int],
    ) -> None: ...

class Contrastive:
    """A row for each of a sentence's candidates; needs controls, and limits with hidden=1."""

    def __init__(self, *, alpha: float) -> None: ...

class Controls:
    """The processors of a call: docs/options.md, with Hugging Face's names where it has one."""

    def __init__(
        self,
        *,
        guidance_scale: float = 1.0,
        sequence_bias: Sequence[tuple[Sequence[int], float]] = (),
        encoder_repetition_penalty: float = 1.0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        encoder_no_repeat_ngram_size: int = 0,
        bad_words: Sequence[Sequence[int]] = (),
        eos: Sequence[int] = (),
        min_new: int = 0,
        forced_last: Sequence[int] = (),
        remove_invalid_values: bool = False,
        decay_start: int = 0,
        decay_factor: float = 1.0,
        suppress_tokens: Sequence[int] = (),
        begin_suppress_tokens: Sequence[int] = (),
        renormalize: bool = False,
        prompt: Tensor | None = None,
        prompt_first: Sequence[int] = (),
        source: Tensor | None = None,
    ) -> None:
        """prompt: int32 [B, P], as the caller gave it; prompt_first: [B], the first column of each
        that is not masked; source: int32 [B, S]. All on the CPU, None where nothing reads them.
        """
    words: int  # 32-bit words of the lists, for Limits.controls

class Session:
    """A model bound to a team of threads, or to a GPU, and to one block of memory.

    Not reentrant: one caller at a time (decoding.session queues them). Long calls release the GIL.
    """

    @overload
    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Tensor],
        *,
        threads: int,
        isa: str,
        cache: str = "float32",
    ) -> None:
        """cache: the type of keys and values, float32 or bfloat16."""
    @overload
    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor], *, device: int) -> None:
        """device: CUDA's index of the GPU; the type of the weights is the session's."""
    threads: int
    isa: str
    graph_nodes: int  # kernels of the step that was captured last; 0 on the CPU
    def tuned(self) -> str:
        """The matrix products met so far, and how each is computed fastest; "" on the CPU."""
    def plan(self, limits: Limits) -> tuple[list[Buffer], int]:
        """The buffers that `limits` need, and the bytes of all of them together."""
    def bind(self, limits: Limits, pool: Tensor) -> None:
        """Uses `pool`, uint8 [bytes], aligned to 256 bytes, from here on."""
    def start(
        self,
        source: Tensor | None,
        source_at: Tensor | None,
        source_offsets: Tensor | None,
        prompt: Tensor,
        prompt_offsets: Tensor,
        items: Tensor,
        sentences: Tensor,
        beams: int,
        rules: Rules,
        search: Greedy | Sampling | Beam | Diverse | Contrastive | Constrained,
        *,
        controls: Controls | None = None,
        warpers: Warpers | None = None,
        stop_table: Tensor | None = None,
        stop_first: Tensor | None = None,
        shortlist: Tensor | None = None,
        shadows: int = 0,
        stream: int = 0,
    ) -> None:
        """Runs the encoder and all but the last token of each prompt.

        source: int32 [tokens], the sentences one after the other; source_at: int32 [tokens], the
        position of each token in its row, masked ones counted; source_offsets: int32 [B + 1];
        all None without an encoder. prompt, prompt_offsets: the same for the decoder.
        items: int32 [B], the index of each sentence in the caller's batch: random numbers are
        keyed by it, so that a split of the batch does not show, and errors name it.
        controls: what is made of the logits, where the rules are not enough; warpers need them.
        stop_table: int32 [states, V], stop_first: int32 [B]; see csrc/kernels/search/stop.h.
        shortlist: int32 [n], ascending, on the CPU: the only tokens that steps choose from, as if
        the logits of all others were -inf; limits with shortlist=n. Forced tokens may be others.
        shadows: with guidance half of the sentences, the last ones; csrc/kernels/search/guidance.h.
        stream: the CUDA stream on which all work of the call is done.
        """
    def step(self, steps: int) -> bool:
        """Generates up to `steps` tokens for every live sentence; True when none is left alive."""
    def compute(self) -> None:
        """One step in parts, which together do what step(1) does: the logits of the live rows."""
    def process(self, stages: int) -> None:
        """Then their scores, with controls: stages 1, 2 and 4 of kernels/search/processors.h."""
    def pick(self) -> None:
        """Then what may follow: a token of each row, or candidates of each sentence."""
    def accept(self, ended: Tensor | None = None) -> bool:
        """Then taking that in. ended: uint8, 1 for each token or candidate with which its row ends.
        True when no sentence is left alive."""
    def stop_now(self) -> None:
        """Ends every row with the step that comes next."""
    def score(
        self,
        source: Tensor | None,
        source_at: Tensor | None,
        source_offsets: Tensor | None,
        ids: Tensor,
        labels: Tensor,
        offsets: Tensor,
        logprobs: Tensor,
        stream: int = 0,
    ) -> None:
        """Writes the log-probability of each label, 0 where it is -100.

        source, source_at, source_offsets, stream: as in start(). ids: int32 [tokens], what the
        decoder reads; labels: int32 [tokens], what it should say behind each; offsets: int32
        [B + 1]; logprobs: float32 [tokens]. It ends what was started.
        """
    def take(
        self, tokens: Tensor, lengths: Tensor, scores: Tensor, sums: Tensor, slots: Tensor
    ) -> None:
        """Writes the results, best first for Beam.

        tokens: int32 [B, K, target]; lengths: int32 [B, K]; scores, sums: float32 [B, K], zero for
        Greedy and Sampling; slots: int32 [B, K, target], the row b * K + k that each token
        extended. What lies behind a length is left as it was.
        """

class EncoderSession:
    """As Session, of an encoder alone."""

    @overload
    def __init__(
        self, spec: EncoderSpec, weights: dict[str, Tensor], *, threads: int, isa: str
    ) -> None: ...
    @overload
    def __init__(self, spec: EncoderSpec, weights: dict[str, Tensor], *, device: int) -> None: ...
    threads: int
    isa: str
    def plan(self, limits: Limits) -> tuple[list[Buffer], int]: ...
    def bind(self, limits: Limits, pool: Tensor) -> None: ...
    def encode(
        self,
        source: Tensor,
        source_at: Tensor,
        source_offsets: Tensor,
        states: Tensor,
        stream: int = 0,
    ) -> None:
        """Writes the hidden states of all tokens.

        source, source_offsets, stream: as in Session.start(). source_at: there, plus the model's
        positions for each type of a token below its own. states: [tokens, H], on a GPU there, in
        the type of the weights, else float32.
        """
