"""Chooses the device and the types of a model from the arguments of load()."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from decoding import _C
from decoding.common.arrays import loaded_torch
from decoding.common.device import CPU, Device, torch_cuda
from decoding.common.warn import warn, warn_once

if TYPE_CHECKING:
    import torch

# Of a model's matrices.
DTYPES = {
    "cpu": ("float32", "bfloat16", "int8"),
    "cuda": ("float32", "float16", "bfloat16", "int8"),
}
SHORT_NAMES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
}
CACHE_DTYPES = ("float32", "bfloat16")  # of keys and values on the CPU
FP8 = "float8_e4m3fn"  # the same on a GPU, beside the type of the model
CPUS = Path("/sys/devices/system/cpu")
SIBLINGS = "cpu{}/topology/thread_siblings_list"  # the hardware threads of a core
# Where NVIDIA's driver has found a GPU, one of these is there; the last is Windows' (WSL).
GPUS = (Path("/proc/driver/nvidia/gpus"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
NO_CUDA = (
    "this build has no CUDA engine: build it again where a GPU is, with nvcc of a CUDA "
    'toolkit or of `pip install .[cuda]`, or pass device="cpu"'
)
NO_CUDA_IN_TORCH = (
    "torch {} was built without CUDA, and this needs its tensors on a GPU: install a torch with "
    'CUDA, or pass device="cpu"'
)
# Where cuBLASLt is: in NVIDIA's packages for CUDA 13 and 12, and in a toolkit.
PACKAGES = ("nvidia/cu13/lib", "nvidia/cublas/lib")
TOOLKITS = (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")


def choose_device(device: str | torch.device) -> Device:
    """With an index where it is a GPU. Raises ValueError, NotImplementedError or decoding.Error,
    which say what is missing."""
    name = str(device)
    if name == "auto":
        return choose_automatically()
    kind, _, number = name.partition(":")
    if kind not in DTYPES or (":" in name and not number.isdecimal()):
        raise ValueError(f'device must be "auto", "cpu", "cuda" or "cuda:N", got {name!r}')
    return CPU if kind == "cpu" else choose_gpu(int(number) if number else None)


def choose_automatically() -> Device:
    """A GPU where everything for it is there, else the CPU, with a warning where there is a GPU."""
    if not sees_gpu():
        return CPU
    try:
        return choose_gpu(None)
    except NotImplementedError as error:
        # A build without CUDA cannot ask: a container may have none, and /dev/dxg be another one.
        if _C.cuda_archs or shutil.which("nvidia-smi"):
            warn_once(f"the model is on the CPU, though this machine has an NVIDIA GPU: {error}")
    except _C.Error:
        pass  # CUDA finds none
    return CPU


def choose_gpu(index: int | None) -> Device:
    """None: torch's current one, where the process uses torch's, else the first."""
    if not _C.cuda_archs:
        raise NotImplementedError(NO_CUDA)
    there, cuda = _C.gpus(), torch_cuda()
    if index is None:
        index = 0 if cuda is None else int(cuda.current_device())
    if index >= len(there):
        raise ValueError(f"there is no cuda:{index}: this machine has {len(there)} GPUs")
    if not supported(there[index]):
        raise NotImplementedError(too_old(there[index]))
    _C.look_for_cublaslt(library_folders())
    return Device("cuda", index)


def sees_gpu() -> bool:
    """Whether there is a GPU, and the user does not hide it from programs."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not is_hidden and any(path.exists() for path in GPUS)


def library_folders() -> list[str]:
    """Those that may have cuBLASLt; "" are the system's own. Packages come first: torch, which may
    be imported later, does not work with another one of the same name."""
    packages = [f"{base}/{folder}/" for folder in PACKAGES for base in filter(None, sys.path)]
    return [*packages, "", *(f"{toolkit}/lib64/" for toolkit in filter(None, TOOLKITS))]


def check_torch() -> None:
    """For what computes with torch's tensors on a GPU. Raises decoding.Error where torch cannot."""
    import torch

    if torch.version.cuda is None:
        raise _C.Error(NO_CUDA_IN_TORCH.format(torch.__version__))


def gpu_name(device: Device) -> str:
    assert device.index is not None
    return _C.gpus()[device.index][0]


def supported(gpu: tuple[str, int]) -> bool:
    """Code for an older GPU runs on a newer one, as machine code or from PTX; never the reverse."""
    return gpu[1] >= oldest()


def too_old(gpu: tuple[str, int]) -> str:
    name, capability = gpu
    return (
        f"{name} has compute capability {capability // 10}.{capability % 10}, this build needs "
        f'{oldest() // 10}.{oldest() % 10} or newer: pass device="cpu"'
    )


def oldest() -> int:
    """The least compute capability that the engine was built for, 80 for 8.0."""
    return min(int(arch.rstrip("af")) for arch in _C.cuda_archs.split())


def dtype_name(dtype: str | torch.dtype) -> str:
    """As torch has it, also for the short names that other programs use."""
    name = str(dtype).removeprefix("torch.")
    return SHORT_NAMES.get(name, name)


def choose_dtype(dtype: str | torch.dtype, device: Device, stored: str) -> str:
    """stored: the type of a checkpoint. "auto" is that one on a GPU, if the engine has it; on the
    CPU bfloat16 for a checkpoint in half precision where the machine computes with it, else
    float32."""
    name, types = dtype_name(dtype), DTYPES[device.type]
    if name == "auto":
        if device.type == "cuda":
            return stored if stored in types and stored != "int8" else "float32"
        half = stored in ("float16", "bfloat16")
        multiplies = any(isa.endswith("_bf16") for isa in _C.isas())
        return "bfloat16" if half and multiplies else "float32"
    if name in types:
        return name
    if any(name in others for others in DTYPES.values()):
        raise NotImplementedError(
            f'dtype="{name}" is not supported on {device}: pass one of {", ".join(types)}'
        )
    raise ValueError(
        f'dtype must be "auto" or one of {", ".join(types)}, got {name!r}'
        + ': "int8" keeps weights that a checkpoint stores in fp8, on a GPU' * (name == FP8)
    )


def choose_kv_cache_dtype(
    kv_cache_dtype: str | torch.dtype, device: Device, dtype: str, stored: str
) -> str:
    """Of the keys and values that are kept. "auto": float32 on the CPU, on a GPU that of the model,
    `dtype`; there models of 16 bits and in int8 may have fp8 instead. Beside int8 it is, but for
    fp8, that of all numbers but the int8 weights: see choose_half."""
    name = dtype_name(kv_cache_dtype)
    types = CACHE_DTYPES if device.type == "cpu" else (dtype,)
    if device.type != "cpu" and dtype == "int8":
        half = choose_half("auto", stored)
        types = (half, "float16" if half == "bfloat16" else "bfloat16")
    if name == FP8:
        check_fp8(device, dtype)
        return FP8
    if name in ("auto", *types):
        return types[0] if name == "auto" else name
    where = "on the CPU" if device.type == "cpu" else "for this model on a GPU"
    if device.type != "cpu" and dtype != "float32":
        types = (*types, "fp8")
    raise ValueError(
        f'kv_cache_dtype must be "auto" or one of {", ".join(types)} {where}, got {name!r}'
    )


def quantizes_activations(
    activation_dtype: str | torch.dtype, device: Device, dtype: str, excluding: dict[str, bool]
) -> bool:
    """Whether products of many rows are to be W8A8 on a GPU. excluding: options that do not go with
    it, and whether they are set."""
    name = dtype_name(activation_dtype)
    if name == "auto":
        return False
    if name != "int8":
        raise ValueError(f'activation_dtype must be "auto" or "int8", got {name!r}')
    if dtype != "int8":
        raise ValueError(
            'activation_dtype="int8" goes with weights in int8, these are '
            f'{dtype}: pass dtype="int8", too'
        )
    if device.type == "cpu":
        return False  # where activations beside int8 weights always are
    for option, is_set in excluding.items():
        if is_set:
            raise ValueError(
                f'activation_dtype="int8" does not go with {option}: leave one of the two out'
            )
    return True


def check_fp8(device: Device, dtype: str) -> None:
    """Raises where keys and values in fp8 do not go with a device, or with a type of weights."""
    if device.type == "cpu":
        raise NotImplementedError(
            'kv_cache_dtype="fp8" is for GPUs: on the CPU pass "bfloat16", which halves the memory '
            "of float32"
        )
    if dtype == "float32":
        raise ValueError(
            'kv_cache_dtype="fp8" goes with weights in float16, bfloat16 or int8, these are '
            'float32: pass dtype="bfloat16" or "float16", too'
        )


def choose_half(kv_cache_dtype: str, stored: str) -> str:
    """The 16-bit type on a GPU of what is no int8 in an int8 model: that of the keys and values
    where these have one, else bfloat16 where the checkpoint, or a converted model's tables, are,
    else float16."""
    if kv_cache_dtype in ("float16", "bfloat16"):
        return kv_cache_dtype
    return "bfloat16" if stored in ("bfloat16", "int8") else "float16"


def choose_packed(device: str, dtype: str, stored: str) -> tuple[Device, str]:
    """Device and type of a converted model: the CPU where nobody asks for a GPU, which takes models
    in int8 alone, and the type that it was converted to."""
    on_gpu = device != "auto" and not device.startswith("cpu")
    if on_gpu and stored != "int8":
        raise ValueError(
            f"a model that was converted to {stored} is for the CPU: load the checkpoint on "
            f'{device}, or pass device="cpu"'
        )
    wanted = dtype_name(dtype)
    if wanted not in ("auto", stored):
        raise ValueError(
            f'the model was converted to {stored}: pass dtype="auto", or convert the checkpoint '
            f"to {wanted} with `decoding convert`"
        )
    return choose_device(device) if on_gpu else CPU, stored


def check_threads(threads: int | None) -> int:
    """The CPU threads of a model: as asked for, else as many as torch uses. Raises ValueError below
    1, warns of more than the cores that the process may use."""
    if threads is None:
        return usual_threads()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        warn(
            f"threads={threads} is more than the {cores} cores that this process may use: they "
            "wait for each other, and every step is slower"
        )
    return threads


def usual_threads() -> int:
    """As many as torch uses, or would if it were imported: one for each core that the process may
    use, of whose hardware threads one is enough, or OMP_NUM_THREADS where that is less."""
    torch = loaded_torch()
    if torch is not None:
        count: int = torch.get_num_threads()
        return count
    asked = os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    first, cores = asked.partition(",")[0].strip(), physical_cores()
    return min(int(first), cores) if first.isdecimal() and int(first) else cores


def physical_cores() -> int:
    """Of those that the process may use."""
    threads = os.sched_getaffinity(0)
    try:
        return len({(CPUS / SIBLINGS.format(thread)).read_text() for thread in threads})
    except OSError:  # the system does not tell
        return len(threads)
