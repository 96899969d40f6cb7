"""Dependencies point downward, along the tree of folders; no rule here names a file.

csrc: core < kernels' contracts < kernels' backends < engine < bindings < bindings/testing.
Python: models, common < engine, generation, text, nn, reference < decoding's own files < corpus <
compare < cli.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.dependencies import (
    CSRC,
    FOLDERS,
    ROOT,
    circles,
    import_graph,
    imports,
    include_graph,
    includes,
    module_name,
    sources,
)

MOST_FILES = 25  # in a folder; models/families has one for each family
SUBJECT = r"(?!(?:cpu|cuda)/)\w+"
CONTRACTS = rf"kernels/({SUBJECT}/)?\w+\.h"
FOREIGN = {  # headers of others, and the folders that may include them
    r"(Python\.h|pybind11/.*)": r"bindings/.*",
    r"(cuda|cooperative_groups|mma)\w*\.h": r".*/cuda/.*",
    r"cublas.*": r"kernels/linear/cuda/.*",
    r"(cudnn|cutlass|cub/|thrust/).*": r"nowhere",
    r"(torch|ATen|c10)/.*": r"nowhere",
    # Where there is no memory, a pool of libstdc++ 12 ends the process instead of throwing.
    r"memory_resource": r"nowhere",
}


def visible(folder: str) -> list[str]:
    """Patterns of the headers that files of a folder of csrc may include; ValueError for a folder
    that csrc should not have."""
    base = ["core/", CONTRACTS]
    match folder.split("/"):
        case ["core"]:
            return ["core/"]
        case ["kernels", ("cpu" | "cuda") as backend]:
            return [*base, f"kernels/{backend}/"]
        case ["kernels"] | ["kernels", _]:
            return base
        case ["kernels", subject, "shared"]:
            return [*base, f"kernels/{subject}/shared/"]
        case ["kernels", subject, ("cpu" | "cuda") as backend, *_]:
            own = f"kernels/{subject}/(shared|{backend})/"
            return [*base, f"kernels/{backend}/", own]
        case ["engine", "model" | "search"]:
            return [*base, "engine/(model|search)/"]
        case ["engine", "scheduler"]:
            return [*base, r"engine/((search|scheduler)/)?\w+\.h"]
        case ["engine"]:
            return [*base, r"engine/((model|search)/)?\w+\.h"]
        case ["engine", "cpu"]:
            return [*base, "kernels/cpu/", r"engine/((model|search|cpu)/)?\w+\.h"]
        case ["engine", "cuda"]:
            return [*base, "kernels/(.*/)?cuda/", r"engine/((model|search|cuda)/)?\w+\.h"]
        case ["bindings"] | ["bindings", "training"]:
            engine = r"engine/((model|search|scheduler)/)?\w+\.h"
            return [*base, "kernels/(cpu|(linear/)?cuda)/", engine, r"bindings/(training/)?\w+\.h"]
        case ["bindings", "testing"]:
            return [*visible("bindings"), "kernels/", "bindings/"]
        case _:
            raise ValueError(f"csrc/{folder} has no layer")


def wrong_includes(name: str, text: str) -> list[str]:
    """The includes that the folder of a file of csrc does not allow."""
    allowed = visible(name.rsplit("/", 1)[0])
    wrong = []
    for quote, header in includes(text):
        ours = quote == '"'
        if ours and not any(re.match(pattern, header) for pattern in allowed):
            wrong.append(header)
        for foreign, home in FOREIGN.items():
            if re.fullmatch(foreign, header) and not re.fullmatch(home, name):
                wrong.append(header)
    return wrong


@pytest.mark.parametrize("path", sources("csrc"), ids=lambda path: str(path.relative_to(CSRC)))
def test_includes_point_downward(path: Path) -> None:
    assert wrong_includes(path.relative_to(CSRC).as_posix(), path.read_text()) == []


def test_no_file_includes_itself_by_a_detour() -> None:
    assert circles(include_graph()) == []


# Only comparisons, tests and benchmarks import other libraries that generate, and what else a
# comparison needs: a model of Hugging Face's is used as it is handed in.
PEERS = ("transformers", "ctranslate2", "matplotlib")
LAYERS = (  # packages of a layer may import each other
    ("decoding._C",),
    ("decoding.common",),
    ("decoding.models",),
    ("decoding.engine", "decoding.generation", "decoding.text"),
    ("decoding",),
    ("decoding.corpus",),
    ("decoding.compare",),
    ("decoding.cli", "decoding.__main__"),
    ("tests", "benchmarks", "examples", "models", "decoding._kernels"),
)
ALONE = (
    "decoding.common",
    "decoding.models",
    "decoding.nn",
    "decoding.reference",
)  # import nothing of ours
ENGINE_USERS = (
    "decoding.engine",
    "decoding.generation",
    "decoding.nn",
    "decoding.serving",
    "decoding",
)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer(name: str) -> int:
    """The layer of a module or of a name in one: that of the longest package it lies in."""
    found = [
        (len(package), number)
        for number, packages in enumerate(LAYERS)
        for package in packages
        if inside(name, package)
    ]
    return max(found)[1] if found else -1  # another library


def room(name: str) -> str:
    """The package directly below `decoding` that a module lies in, or `decoding`."""
    parts = name.split(".")
    is_package = len(parts) > 1 and (ROOT / "decoding" / parts[1]).is_dir()
    return ".".join(parts[:2]) if is_package else parts[0]


def wrong_imports(module: str, names: set[str]) -> set[str]:
    """The imports that the place of a module of decoding does not allow."""
    own = room(module)
    wrong = {name for name in names if layer(name) > layer(module)}
    if own in ALONE:
        engine = "decoding._C" if own == "decoding.nn" else own
        ours = {name for name in names if inside(name, "decoding")}
        wrong |= {name for name in ours if not inside(name, own) and not inside(name, engine)}
    if own not in ENGINE_USERS:
        wrong |= {name for name in names if inside(name, "decoding._C")}
    if own != "decoding.compare" and module != "decoding.cli.comparing":
        peers = (*PEERS, "decoding.compare")
        wrong |= {name for name in names for peer in peers if inside(name, peer)}
    return wrong


@pytest.mark.parametrize("folder", ["decoding", "models"])
def test_imports_point_downward(folder: str) -> None:
    files = [path for path in sources(folder) if path.suffix == ".py"]
    found = {module_name(path): wrong_imports(module_name(path), imports(path)) for path in files}
    wrong = {name: names for name, names in found.items() if names}
    assert found and not wrong


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circles(import_graph("decoding", "models")) == []


def test_the_program_needs_nothing_of_the_extras() -> None:
    """The work of `compare` must not import what is in its extra before it is needed."""
    hidden = "".join(f"sys.modules[{name!r}] = None;" for name in (*PEERS, "sacrebleu"))
    code = f"import sys; {hidden} import decoding.cli.main, decoding.cli.comparing"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_folders_are_small() -> None:
    files = Counter(path.parent for folder in FOLDERS for path in sources(folder))
    del files[ROOT / "models" / "families"]
    large = {str(path.relative_to(ROOT)): n for path, n in files.items() if n > MOST_FILES}
    assert not large


def test_the_rules_can_fail() -> None:
    assert wrong_includes("core/arena.h", '#include "engine/session.h"') == ["engine/session.h"]
    assert wrong_includes("kernels/rows/norm.h", "#include <pybind11/stl.h>")
    assert wrong_includes("kernels/rows/cpu/norm.cc", '#include "kernels/cuda/x.h"')
    assert wrong_includes("kernels/rows/cpu/norm.cc", '#include "kernels/linear/cpu/x.h"')
    assert wrong_includes("kernels/rows/cpu/norm.cc", '#include "kernels/linear/linear.h"') == []
    assert wrong_includes("engine/search/request.h", '#include "kernels/cpu/stream.h"')
    assert wrong_includes("engine/scheduler/scheduler.cc", '#include "engine/cpu/workspace.h"')
    assert wrong_includes("engine/session.h", "#include <cuda_runtime.h>")
    assert wrong_includes("engine/scheduler/request_queue.h", "#include <memory_resource>")
    assert wrong_includes("bindings/model.cc", '#include "bindings/testing/kernels.h"')
    with pytest.raises(ValueError, match="no layer"):
        wrong_includes("engine/vulkan/session.cc", '#include "core/arena.h"')
    assert wrong_imports("decoding.models.spec", {"decoding.engine.session"})
    assert wrong_imports("decoding.models.spec", {"decoding.models.registry", "torch"}) == set()
    assert wrong_imports("decoding.text.translate", {"decoding.model.Model"})
    assert wrong_imports("decoding.text.translate", {"decoding._C"})
    assert wrong_imports("decoding.model", {"models.gpt"})
    assert wrong_imports("decoding.model", {"decoding.compare.runs"})
    assert wrong_imports("decoding.model", {"transformers"})
    assert wrong_imports("decoding.compare.runs", {"benchmarks.report.rows"})
    assert wrong_imports("decoding.compare.runs", {"transformers"}) == set()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
