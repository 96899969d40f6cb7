"""What runs on GitHub: actions are pinned, and no job may do more than it has to."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dependencies import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# A tag can be moved to other code, a commit cannot; its version is for readers and for dependabot.
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
RIGHTS = {  # beyond reading the repository
    "codeql": {"security-events": "write"},
    "publish": {"attestations": "write", "id-token": "write"},
    "release": {"contents": "write"},
}


def used(text: str) -> list[str]:
    """The actions of a workflow, with the comments behind them."""
    return re.findall(r"^\s*(?:- )?uses:\s*(.*)$", text, re.MULTILINE)


def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            assert name not in found, f"two jobs are called {name}"
            found[name] = job
    return found


JOBS = jobs()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_its_actions_are_pinned(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [action for action in used(text) if not PINNED.fullmatch(action)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    # It runs with the repository's rights on what a stranger asks to merge. YAML reads on as True.
    assert "pull_request_target" not in workflow[True]


def test_the_same_action_has_the_same_version_everywhere() -> None:
    versions = defaultdict(set)
    for path in WORKFLOWS:
        for action in used(path.read_text(encoding="utf-8")):
            repository = "/".join(action.split("@")[0].split("/")[:2])
            versions[repository].add(action.partition("@")[2])
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_jobs_have_the_rights_that_they_need() -> None:
    more = {}
    for name, job in JOBS.items():
        rights = dict(job.get("permissions", {}))
        if rights.get("contents") == "read":
            del rights["contents"]
        if rights:
            more[name] = rights
    assert more == RIGHTS


def test_who_may_sign_runs_published_actions_alone() -> None:
    """Neither our code nor a build's can take its token; a person approves its environment."""
    publish = JOBS["publish"]
    assert publish["environment"] == "release"
    actions = [step["uses"].split("@")[0] for step in publish["steps"]]
    allowed = {"actions/attest", "actions/download-artifact", "pypa/gh-action-pypi-publish"}
    assert set(actions) == allowed


@pytest.mark.parametrize("name", JOBS)
def test_steps_keep_no_token_and_run_no_text_of_strangers(name: str) -> None:
    assert JOBS[name]["timeout-minutes"] <= 180
    for step in JOBS[name]["steps"]:
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "pass it through env:"


def test_wheels_are_tried_with_every_python_that_they_are_built_for() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [last_digits] = re.findall(r'^build = "cp31\{([\d,]+)\}', pyproject, re.MULTILINE)
    minors = [f"1{digit}" for digit in last_digits.split(",")]
    steps = JOBS["try"]["steps"]
    [pythons] = [step["with"] for step in steps if "setup-python@" in step.get("uses", "")]
    assert pythons["python-version"].split() == [f"3.{minor}" for minor in minors]
    assert f"for minor in {' '.join(minors)};" in steps[-1]["run"]


@pytest.mark.parametrize(
    "action",
    [
        "actions/checkout@v7",
        "actions/checkout@v7.0.1 # v7.0.1",
        "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1",
        "actions/checkout@3d3c42e5 # v7.0.1",
    ],
)
def test_what_is_not_pinned_is_found(action: str) -> None:
    assert used(f"steps:\n  - uses: {action}\n") == [action]
    assert not PINNED.fullmatch(action)
