"""Lets a transformers model generate with this library, in place and reversibly."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from decoding.common.warn import warn
from decoding.loading import load
from decoding.model import Model

if TYPE_CHECKING:
    from torch import Tensor

POSITIONAL = (  # the first arguments of transformers' generate()
    "inputs",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
)


class Acceleration:
    """A transformers model whose generate() is this library's; as a context manager it ends with
    the block.

    hf_model: the model. arguments: of load(). model: ours, with a copy of its weights, which is
    made again where they have changed since.
    """

    def __init__(self, hf_model: Any, arguments: dict[str, Any]) -> None:
        self.hf_model, self.arguments = hf_model, arguments
        self._model: Model | None = None
        self._weights: object = None  # identity of those that _model has
        self._told: set[str] = set()
        self._turn = threading.Lock()

    @property
    def model(self) -> Model:
        with self._turn:
            weights = identity(self.hf_model)
            if self._model is None or weights != self._weights:
                self._model = load(self.hf_model, **self.arguments)
                self._weights = weights
            return self._model

    def generate(self, *args: Any, **options: Any) -> Any:
        """transformers' generate(), by this library; a call that this library refuses runs in
        transformers, with a warning that says why."""
        try:
            call = self._prepared(*args, **options)
        except (NotImplementedError, TypeError, ValueError) as error:
            reason = str(error)
            if reason not in self._told:
                self._told.add(reason)
                warn(f"this call runs in transformers: {reason}")
            return self.original(*args, **options)
        return call.run()

    def _prepared(self, *args: Any, **options: Any) -> Any:
        for module in self.hf_model.modules():
            if module.training:
                raise ValueError("the model is in training mode: call eval()")
            hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if not all(map(is_of_transformers, hooks)):
                raise ValueError("a module of the model has hooks, which the engine cannot call")
        if len(args) > len(POSITIONAL):
            raise TypeError(f"pass arguments behind {POSITIONAL[-1]} by their names")
        options |= dict(zip(POSITIONAL, args, strict=False))
        model = self.model
        model.generation_config = self.hf_model.generation_config
        return model.prepare(**options)

    @property
    def original(self) -> Any:
        """transformers' own generate() of the model."""
        return type(self.hf_model).generate.__get__(self.hf_model)

    def restore(self) -> None:
        """Gives the model its own generate() back, and the memory of ours."""
        if handle_of(self.hf_model) is self:
            del self.hf_model.generate
        self._model = None

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, in another process, say, makes its own engine on its first call."""
        return Acceleration, (self.hf_model, self.arguments)


def accelerate(hf_model: Any, **arguments: Any) -> Acceleration:
    """Replaces the generate() of a transformers model by this library's, in place.

        decoding.accelerate(hf_model)
        pipeline("text-generation", model=hf_model, tokenizer=tokenizer)   # as before, but faster

    Args:
        hf_model: a transformers model in memory, in evaluation mode; with adapters of PEFT merged
            (merge_and_unload()).
        arguments: dtype, limits, threads, kv_cache_dtype, activation_dtype, deterministic,
            detect_overflow and tokenizer of decoding.load(). The device is the model's own.

    In float32 the tokens are exactly those of transformers. A call that this library refuses, such
    as one with an assistant model, or of a model with hooks, runs in transformers, with a warning
    that says why. Weights that have changed since are read again, but for writes that torch does
    not count, through `.data` or NumPy: accelerate() anew after those.

    Returns a handle: its restore(), decoding.restore(hf_model) or the end of a `with` block gives
    the model its own generate() back. Raises TypeError and ValueError for a model that this library
    does not have, and the errors of load().
    """
    if not hasattr(hf_model, "generation_config"):
        raise TypeError(
            f"accelerate() takes a transformers model that generates, got {type(hf_model).__name__}"
        )
    if hasattr(hf_model, "merge_and_unload"):
        raise ValueError(
            f"{type(hf_model).__name__} has adapters that are not merged: pass what "
            "merge_and_unload() returns"
        )
    if handle_of(hf_model) is not None:
        restore(hf_model)
    handle = Acceleration(hf_model, {"device": hf_model.device, **arguments})
    _ = handle.model  # an error comes here, not in the first call
    hf_model.generate = handle.generate
    return handle


def restore(hf_model: Any) -> None:
    """Ends accelerate(): the model generates by itself again. Raises ValueError where it does."""
    handle = handle_of(hf_model)
    if handle is None:
        raise ValueError("the model is not accelerated: its generate() is its own")
    handle.restore()


def handle_of(hf_model: Any) -> Acceleration | None:
    own = getattr(hf_model, "__dict__", {}).get("generate")
    handle = getattr(own, "__self__", None)
    return handle if isinstance(handle, Acceleration) else None


def is_of_transformers(hook: Any) -> bool:
    """Whether transformers has put a hook there itself: one that keeps attentions changes none."""
    return str(getattr(hook, "__module__", "")).startswith("transformers.")


def identity(hf_model: Any) -> object:
    """Differs where a weight has moved or was written to."""
    return tuple(
        (name, weight.data_ptr(), version(weight))
        for name, weight in hf_model.state_dict(keep_vars=True).items()
    )


def version(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version
