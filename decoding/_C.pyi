"""The compiled engine. Tensors are contiguous, and may be NumPy's arrays, or what else has Python's
buffer protocol, on the CPU and DeviceArrays on a GPU; docs/glossary.md has the shape letters.

A session on a GPU has its weights and its pool there, everything else on the CPU.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

from torch import Tensor
from typing_extensions import CapsuleType

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.dtypes import Array, Numbers, Stored

cuda_archs: str  # what there is machine code for, "80 90"; empty without CUDA
sources_hash: str  # of the C++ sources that the engine was built from

class Error(RuntimeError): ...

def isas() -> list[str]:
    """Instruction sets of this machine that the engine has code for, best first."""

class DeviceArray:
    """Numbers in a GPU's memory, with the names that torch has for the same things. Where the
    engine is built for CUDA.

    Views share the memory, which goes with the last of them; so do torch's, which as_tensor() of
    models/weights/dtypes.py makes.
    """

    def __init__(self, bytes: int, device: int) -> None:
        """uint8 [bytes], uninitialised. Raises MemoryError where there is no memory left."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...  # "cuda:0"
    @property
    def nbytes(self) -> int: ...  # from the first number to the end of the last
    def dlpack(self) -> CapsuleType:
        """The same memory for torch.from_dlpack()."""
    def stride(self) -> tuple[int, ...]: ...
    def is_contiguous(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def view(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        stream: int = 0,
    ) -> DeviceArray:
        """What lies from byte `offset` on. strides: in numbers; None: without gaps. stream: the
        CUDA stream whose work writes it, for which copies wait."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: int | slice) -> DeviceArray:
        """A row, or some that follow each other."""
    def copy_from(self, array: Array) -> None:
        """Copies the CPU's array, which has as many bytes, to here; it is done on return."""
    def copy_to(self, array: Array) -> None:
        """Copies all `nbytes` to the CPU's array, uint8 [nbytes]."""

def gpus() -> list[tuple[str, int]]:
    """Name and compute capability, 80 for 8.0, of each GPU. Raises Error where CUDA finds none."""

def free_memory(device: int) -> int:
    """Bytes of a GPU's memory that nobody has."""

def load_tuned_kernels(device: int) -> int:
    """Loads kernels of cuBLASLt that products on that GPU were tuned to, for which first launches
    wait otherwise. Returns how many."""

def look_for_cublaslt(folders: Sequence[str]) -> None:
    """Where it is looked for when it is used first, "" in the system's places."""

def fill_panels(
    panels: Numbers,
    weight: Numbers,
    first: int,
    scale: Numbers | None = None,
    sums: Numbers | None = None,
    *,
    threads: int,
) -> bool:
    """Packer.fill of models/weights/panels.py, on some threads."""

def convert(to: Numbers, weight: Numbers, *, threads: int) -> bool:
    """Packer.convert."""

def interleave(rows: Array, panels: Array, inputs: int, *, threads: int) -> None:
    """Packer.interleave."""

def squares(weight: Numbers, *, threads: int) -> tuple[float, float]:
    """Packer.squares."""

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
        mean: bool,
        weight: Tensor | None = None,
        ignored: int = -100,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the sum of losses, R [rows], and the sum of the weights of all labels that count;
        with `mean` the first is divided by the second. total, count: R, one number."""
    @staticmethod
    def cross_entropy_backward(
        x: Tensor,
        labels: Tensor,
        softmax: Tensor,
        upstream: Tensor,
        dx: Tensor,
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
        stats: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        residual: Tensor | None,
        bias: Tensor | None,
        sum: Tensor | None,
        eps: float,
        rms: bool,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes norm(dropout(x + bias) + residual) to y, and what is normed, rounded to T, to sum.

        x, residual, y, sum: T [rows, cols]; sum is None where nothing is added and dropped.
        gamma, beta, bias: T [cols], or float32 beside two-byte T. stats: R [2, rows], the mean and
        the factor of each row for norm_backward; rms has no mean and no beta: [1, rows]. dropout,
        seed: as of `dropout`.
        """
    @staticmethod
    def norm_backward(
        s: Tensor,
        dy: Tensor,
        dx: Tensor,
        stats: Tensor,
        gamma: Tensor | None,
        dgamma: Tensor | None,
        dbeta: Tensor | None,
        dbias: Tensor | None,
        dsum: Tensor | None,
        dresidual: Tensor | None = None,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes the gradients of `norm`: kernels/rows/norm.h. The same bits every time.

        s: T [rows, cols], what was normed (`sum`, or x); dsum: what comes to it from elsewhere.
        dx: T [rows, cols], the gradient of x, and of the residual where nothing is dropped;
        dresidual: else that of the residual. dgamma, dbeta, dbias as gamma there. All but dx are
        None where nobody asks. stats: as `norm` left them; dropout, seed: as it had them.
        """
    @staticmethod
    def embed(
        ids: Tensor,
        table: Tensor,
        y: Tensor,
        positions: Tensor | None = None,
        position: Tensor | None = None,
        length: int = 0,
        scale: float = 1.0,
        dropout: float = 0.0,
        seed: Tensor | None = None,
        isa: str = "",
        threads: int = 0,
    ) -> None:
        """Writes dropout(scale * table[ids] + positions[position]) to y.

        ids, position: int64 [rows]; table: T [V, H]; positions: T [P, H]; y: T [rows, H]. Without
        `position` it is row % length. seed: int64 [1]; dropout: the probability of 0. Raises
        IndexError for an id or a position that is out of range; on a GPU as cross_entropy does, and
        the row is NaN.
        """
    @staticmethod
    def embed_backward(
        dy: Tensor,
        ids: Tensor,
        order: Tensor | None,
        dtable: Tensor,
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
    def softmax(x: Tensor, y: Tensor, isa: str = "", threads: int = 0) -> None:
        """Writes softmax(x) over the last axis to y. x, y: T [rows, cols]."""
    @staticmethod
    def softmax_backward(
        y: Tensor, dy: Tensor, dx: Tensor, isa: str = "", threads: int = 0
    ) -> None:
        """Writes y * (dy - sum(y * dy)) to dx, which may be dy. All: T [rows, cols]."""
    @staticmethod
    def dropout(
        x: Tensor, y: Tensor, p: float, seed: Tensor, isa: str = "", threads: int = 0
    ) -> None:
        """Writes 0 to y with probability p, else x / (1 - p); the gradient is the same of dy.

        x, y: T of one shape, which may be the same; seed: int64 [1], there or on the CPU. Equal
        seeds drop the same elements, on every device.
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

class Greedy:
    def __init__(self) -> None: ...

class Sampling:
    def __init__(self) -> None: ...

class Beam:
    def __init__(self, *, max_finished: int = 0, samples: bool = False) -> None:
        """max_finished: rows that a sentence's finished list holds; 0: one for each of its rows.
        samples: candidates are sampled."""

class Diverse:
    """Group diverse beam search: `beam` within each of the groups, one after the other."""

    def __init__(self, beam: Beam, *, groups: int) -> None: ...

class Constrained:
    """Constrained beam search, csrc/kernels/search/constraints.h; limits with phrases=words."""

    words: int

    def __init__(
        self,
        beam: Beam,
        *,
        depths: Sequence[int],
        first_edge: Sequence[int],
        tokens: Sequence[int],
    ) -> None: ...

class Contrastive:
    """A row for each of a sentence's candidates; needs limits with hidden=1."""

    def __init__(self) -> None: ...

class Request:
    """All that a call asks for beside its texts. B sentences; the names are Hugging Face's where it
    has one (docs/options.md). What is given in **options may differ between sentences, but for the
    tensors: one value is for all of them, a sequence, array or tensor has one for each. Lists of
    ids are nested once more where each sentence has its own. csrc/engine/search/options.h lists
    them; TypeError for a name that is not there, Error where there is no value for each sentence.
    """

    def __init__(
        self,
        *,
        sentences: int,
        rows_per_sentence: int = 1,
        search: Greedy | Sampling | Beam | Diverse | Contrastive | Constrained = ...,
        process: bool = False,
        **options: Any,
    ) -> None:
        """process: scores are made (float32 [rows, V]) even where no option needs them, because
        somebody looks at them. Steps count from 1.

        max_new: tokens that a row may have; min_new: those of them that are no EOS. eos: each ends
        a row; a repeated one counts among the candidates of beam search. pad: what an ended row
        reads while its sentence goes on. forced_first: the only token of step 1, -1: any.
        forced_last: the only tokens of a sentence's last step. random_first: the row word of a
        sentence's first row (csrc/kernels/search/sampling.h); its other rows follow.

        stop_table: int32 [states, V] on the session's device (csrc/kernels/search/stop.h);
        stop_first: the state behind each prompt. One table may hold several automata, of different
        sentences.

        prompt: int32 [B, P], as the caller gave it; prompt_first: the first column of each that is
        not masked; source: int32 [B, S]. All on the CPU; None where no processor reads them.
        """
    def for_sentences(self, sentences: int, *, process: bool = False, **own: Any) -> Request:
        """The request's options, which must be of one sentence, for so many; `own`, as in
        **options, takes the place of those that it names. process: in addition to the request's
        own."""
    reads_texts: bool  # whether processors read `prompt` or `source`, which must then be given
    processed: bool  # whether scores are made, which limits with controls=max(1, words) plan for
    content: bytes  # equal where two requests are
    guided: bool  # whether the batch must hold twice as many prompts
    words: int  # 32-bit words of all lists
    most_words: int  # of the lists of one sentence
    max_new: list[int]  # of each sentence
    steps: int  # that the longest row takes at most, for limits with target=steps

class Batch:
    """The texts of a call, packed one after the other. The tensors are on the CPU."""

    def __init__(
        self,
        *,
        source: Numbers | None = None,
        source_positions: Numbers | None = None,
        source_offsets: Numbers | None = None,
        prompt: Numbers,
        prompt_offsets: Numbers,
        sentence_ids: Numbers,
        shortlist: Numbers | None = None,
        stream: int = 0,
    ) -> None:
        """source: int32 [tokens]; source_positions: int32 [tokens], the position of each token in
        its row, masked ones counted; source_offsets: int32 [B + 1]; all None without an encoder.
        prompt, prompt_offsets: the same for the decoder. With guidance 2 B prompts: behind those of
        the sentences the unconditional one of each (csrc/kernels/search/guidance.h).
        sentence_ids: int32, as many as prompts, the index of each in the caller's batch, which
        errors name. shortlist: int32 [n], ascending, on the CPU: the only tokens that steps choose
        from, as if the logits of all others were -inf; limits with shortlist=n. Forced tokens may
        be others. stream: the CUDA stream on which all work of the call is done.
        """

def collective_bytes(size: int, part_bytes: int) -> int:
    """Of the file that a Collective maps."""

class Collective:
    """The ranks of a model that is split over processes: csrc/kernels/cpu/collective.h."""

    def __init__(self, path: str, *, rank: int, size: int, part_bytes: int) -> None:
        """path: a file of collective_bytes() zeros, which all ranks map before one calls begin().
        part_bytes: of what a rank gives to an exchange, a multiple of 4096."""
    rank: int
    size: int
    def begin(self, digest: int) -> None:
        """Begins a call, which all ranks must with the same 64-bit digest. It waits for them, and
        raises Error where one has ended, has failed, or has another digest."""
    def fail(self, why: str) -> None:
        """Ends the call on all other ranks."""
    def max_of(self, value: int) -> int:
        """The largest value of any rank, inside a call."""

class CudaCollective:
    """The GPUs of ranks: csrc/kernels/cuda/collective.h. Only where the build has CUDA."""

    def __init__(self, ranks: Collective, *, device: int, part_bytes: int) -> None:
        """device: CUDA's index of this rank's, which becomes the current one of the thread.
        part_bytes: as above, at least 512 KiB. Raises MemoryError where the GPU has none left."""
    def share(self) -> bytes:
        """Makes memory that other ranks write to, and returns with what they open it. Raises Error
        where processes cannot share a GPU's memory."""
    def open(self, handles: list[bytes]) -> None:
        """handles: of all ranks. Raises Error where one cannot be opened."""
    host_bytes: int
    def open_on_host(self, path: str) -> None:
        """In place of both: path is a file of host_bytes zeros. Raises Error where GPUs cannot use
        it."""
    def enter(self) -> None:
        """Begins a call, inside that of the ranks."""
    def leave(self) -> None:
        """It has not failed."""

class CudaLaunchLock:
    """Held by a call of a split model: csrc/kernels/cuda/launch_order.h. Only where the build has
    CUDA."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Session:
    """A model bound to a team of threads, or to a GPU, and to one block of memory.

    Not reentrant: one caller at a time (decoding.session queues them). Long calls release the GIL.
    """

    @overload
    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Stored],
        *,
        threads: int,
        isa: str,
        cache: str = "float32",
        collective: Collective | None = None,
        detect_overflow: bool = False,
    ) -> None:
        """cache: the type of keys and values, float32 or bfloat16. collective: of the ranks that
        the model is split over, of which spec and weights are this one's shard. detect_overflow: as
        in decoding.load()."""
    @overload
    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Stored],
        *,
        device: int,
        cache: str = "",
        collective: CudaCollective | None = None,
        deterministic: bool = False,
        detect_overflow: bool = False,
    ) -> None:
        """device: CUDA's index of the GPU; the type of the weights is the session's. cache: of
        keys and values, "" for the same, or float8_e4m3fn. collective: as above, on that GPU.
        deterministic: as in decoding.load()."""
    threads: int
    isa: str
    graph_nodes: int  # kernels of the step that was captured last; 0 on the CPU
    def tuned(self) -> str:
        """The matrix products met so far, and how each is computed fastest; "" on the CPU."""
    def plan(self, limits: Limits) -> tuple[list[Buffer], int]:
        """The buffers that `limits` need, and the bytes of all of them together."""
    def bind(self, limits: Limits, pool: Numbers) -> None:
        """Uses `pool`, uint8 [bytes], aligned to 256 bytes, from here on."""
    def overflow(self) -> list[tuple[str, float, int]]:
        """With detect_overflow, of each tensor so far: its name, the largest of its finite
        numbers, and its rows that were not finite. It waits for a GPU."""
    def first_overflow(self, sentence: int) -> str:
        """With detect_overflow, after score(): the first tensor that was not finite for a sentence
        whose logits were not; without it ""."""
    def start(self, request: Request, batch: Batch) -> None:
        """Runs the encoder and all but the last token of each prompt."""
    def step(self, steps: int) -> bool:
        """Generates up to `steps` tokens for every active sentence; True when none is left."""
    def compute(self) -> None:
        """One step in parts, which together do what step(1) does: the logits of active rows."""
    def process_logits(self, stages: int) -> None:
        """Then their scores, where the request is processed: stages 1, 2 and 4 of
        csrc/kernels/search/processors.h."""
    def select(self) -> None:
        """Then what may follow: a token of each row, or candidates of each sentence."""
    def update(self, ended: Tensor | None = None) -> bool:
        """Then the rows take that in. ended: uint8, 1 for each token or candidate with which its
        row ends. True when no sentence is left."""
    def stop_now(self) -> None:
        """Ends every row with the step that comes next."""
    def state(self) -> dict[str, Numbers]:
        """Views of the engine's memory, on its device, as they are now; it waits for the device.

        With B sentences, K rows of each, n active sentences, R = B * K, T steps taken and m
        candidates of a sentence:

        number: int32 [n], of each active sentence's next step, from 1
        active: int32 [n], the sentences that go on, or that the step under way is about
        logits: [n * K, V], in the session's numbers; scores: float32 [n * K, V], where processed
        candidate_ids: int32, once selected: [n, m], row * V + token, best first, -1 behind the
            last; where rows do not compete [n * K, 1], the token
        tokens, parent_rows: int32 [target, R], by step; parent_rows: the row b * K + k that each
            token extended, where rows compete
        lengths: int32 [R], tokens of a row that has ended, 0 while it goes on; where rows do not
            compete
        finished_scores, finished_sums: float32 [B, max_finished]; finished_lengths, finished_rows,
            finished_tokens: int32, the same shape; finished_count: int32 [B]; where rows compete
        attentions: float32 [T, R, source], where limits have attentions=1
        """
    def score(
        self,
        source: Numbers | None,
        source_positions: Numbers | None,
        source_offsets: Numbers | None,
        sources: Numbers | None,
        ids: Numbers,
        labels: Numbers,
        offsets: Numbers,
        logprobs: Numbers,
        ranks: Numbers,
        argmax: Numbers,
        stream: int = 0,
    ) -> None:
        """Writes the log-probability and the rank of each label, and the most likely token.

        A label of -100 has the log-probability 0, the rank 0 and the token -100.

        source, source_positions, source_offsets, stream: as in Batch, of the sources. sources:
        int32 [B], the number of each sentence's source, at most its own: several may have one. ids:
        int32 [tokens], what the decoder reads; labels: int32 [tokens], what it should say behind
        each; offsets: int32 [B + 1]; logprobs: float32 [tokens]; ranks, argmax: int32 [tokens]. It
        ends what was started.
        """
    def attend(
        self,
        source: Numbers,
        source_positions: Numbers,
        source_offsets: Numbers,
        sources: Numbers,
        ids: Numbers,
        offsets: Numbers,
        attentions: Numbers,
        stream: int = 0,
    ) -> None:
        """Writes how much each token that the decoder reads attends to each position of its source:
        the mean over the heads of the last layer, 0 after the source's end.

        Needs limits with attentions=1. attentions: float32 [tokens, longest source]; the others are
        those of score(). It ends what was started.
        """
    def fetch(
        self,
        tokens: Numbers,
        lengths: Numbers,
        scores: Numbers,
        sums: Numbers,
        parent_rows: Numbers,
    ) -> None:
        """Writes the results, best first where rows compete.

        tokens: int32 [B, K, target]; lengths: int32 [B, K]; scores, sums: float32 [B, K], zero
        where rows do not compete; parent_rows: int32 [B, K, target], the row b * K + k that each
        token extended. What lies behind a length is left as it was.
        """

class EngineLimits:
    """What an engine's memory plan must hold: see decoding.serving.planning.EngineLimits."""

    def __init__(
        self,
        *,
        requests: int,
        beams: int,
        source: int,
        prompt: int,
        target: int,
        pages: int,
        tokens: int,
        candidates: int,
        words: int,
        classes: int,
    ) -> None: ...

class Engine:
    """A model bound as for a Session, whose requests join and leave between any two steps, in a
    thread of its own. Any thread may call it, and all that waits releases the GIL."""

    @overload
    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Stored],
        *,
        threads: int,
        isa: str,
        cache: str = "float32",
        collective: Collective | None = None,
        detect_overflow: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Stored],
        *,
        device: int,
        cache: str = "",
        collective: CudaCollective | None = None,
        deterministic: bool = False,
        detect_overflow: bool = False,
    ) -> None: ...
    def plan(self, limits: EngineLimits) -> tuple[list[Buffer], int]:
        """As Session.plan()."""
    def bind(
        self,
        limits: EngineLimits,
        pool: Numbers,
        *,
        prefix_caching: bool = True,
        overcommit: bool = False,
    ) -> None:
        """Uses `pool`, uint8 [bytes], aligned to 256 bytes, and starts the thread; one that runs
        is closed before, without draining. With a collective, whose call has begun: on ranks other
        than 0 the thread does what rank 0's engine does, and these take no requests."""
    @overload
    def submit(
        self,
        request: Request,
        source: Array | None,
        prompt: Array,
        *,
        priority: int = 0,
        deadline: float = ...,
        max_time: float = ...,
        stream: bool = False,
        salt: int = 0,
    ) -> int:
        """The same for one sentence of which no token is masked, int64 [1, n], as plain_ids() makes
        it; source: None without an encoder."""
    @overload
    def submit(
        self,
        request: Request,
        batch: Batch,
        *,
        priority: int = 0,
        deadline: float = ...,
        max_time: float = ...,
        stream: bool = False,
        salt: int = 0,
        together: bool = False,
    ) -> int:
        """Adds a request for each sentence and returns the first one's id, by which outputs name
        it; those of the others follow. together: they are delivered as one BatchOutput, of the
        first one's id, once all have ended; where one has a fault, the others are cancelled.

        priority: higher ones are admitted first. deadline: seconds from now, at which it ends with
        "expired" unless it has ended before; inf: none. max_time: seconds from now, after which
        its next token is its last. stream: its tokens are delivered as they are certain. salt:
        requests of different salts share no pages. Raises Error where one of them can never fit,
        and names pages and bytes; then none is added.
        """
    def cancel(self, id: int) -> None:
        """Ends a request, or all that were submitted together, with "cancelled" within a few steps,
        unless it ends before; no error where it has ended."""
    def wait(self, timeout: float) -> list[tuple[int, list[list[int]] | Output | BatchOutput]]:
        """All that was delivered since the last call, as soon as there is anything; empty after so
        many seconds. Each is a request's id, with new tokens, of the best row alone where rows
        compete, else of each row, or with its end, which follows them."""
    def follow(self, timeout: float) -> bool:
        """Of a rank other than 0: waits up to so many seconds until rank 0's engine is closed.
        Returns whether it is; raises Error where this one has ended before."""
    def stats(self) -> dict[str, Any]:
        """See decoding.Engine.stats()."""
    def overflow(self) -> list[tuple[str, float, int]]:
        """As Session.overflow(), but it waits for nobody."""
    def close(self, drain: bool) -> None:
        """Ends the thread: after all requests have ended, or, without `drain`, once they are
        cancelled. Their outputs can be waited for afterwards. Twice is no error. Of a rank
        other than 0: at once, and with it rank 0's engine, where that has not been closed."""

def plain_ids(given: Any, *, vocab: int, without: int = -1) -> Array | None:
    """int64 [1, n]: a copy of a list, a tuple or an array of whole numbers, [n] or [1, n], each at
    least 0 and below `vocab`, and none of them `without`. None for anything else, which may be ids,
    too: whoever takes all forms of them says what is wrong."""

class Output:
    """How a request has ended. K rows: of results, where it has come to its "end"."""

    id: int
    kind: Literal["end", "cancelled", "expired", "fault"]
    tokens: Array  # int32 [K, n], best first; what follows a row's length is undefined
    lengths: Array  # int32 [K], of each row's tokens
    scores: Array  # float32 [K]; zero where rows do not compete
    sums: Array  # the same
    parent_rows: Array  # int32 [K, n], the row that each token extended
    message: str  # of a fault

    def sequences(self, prompt: Array, returned: int, fill: int) -> Array:
        """int64 [returned, P + longest], as generate() returns them: the prompt, [1, P], then the
        tokens of each of the first rows, with `fill` after its length."""

class BatchOutput:
    """How sentences ended that were submitted together. Shapes: B sentences, K rows of each."""

    id: int  # of the first
    kind: Literal["end", "cancelled", "expired", "fault"]  # "end": of all of them
    message: str  # of a fault

    def tables(self, fill: int) -> tuple[Array, Array, Array, Array, Array]:
        """tokens, lengths, scores, sums and parent rows, as Session.fetch() has them, where all
        have come to their "end". n is the longest row's length; `fill` and -1 follow those of the
        others."""

class EncoderSession:
    """As Session, of an encoder alone."""

    @overload
    def __init__(
        self,
        spec: EncoderSpec,
        weights: dict[str, Stored],
        *,
        threads: int,
        isa: str,
        detect_overflow: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        spec: EncoderSpec,
        weights: dict[str, Stored],
        *,
        device: int,
        deterministic: bool = False,
        detect_overflow: bool = False,
    ) -> None: ...
    threads: int
    isa: str
    def plan(self, limits: Limits) -> tuple[list[Buffer], int]: ...
    def bind(self, limits: Limits, pool: Numbers) -> None: ...
    def overflow(self) -> list[tuple[str, float, int]]: ...
    def encode(
        self,
        source: Numbers,
        source_positions: Numbers,
        source_offsets: Numbers,
        states: Tensor,
        stream: int = 0,
    ) -> None:
        """Writes the hidden states of all tokens.

        source, source_offsets, stream: as in Batch. source_positions: there, plus the model's
        positions for each type of a token below its own. states: [tokens, H], on a GPU there, in
        the type of the weights, else float32.
        """
