"""Nothing that users rely on changes without a word: numbers, commands, settings, files of a run, wire formats."""

from typing import Any

import pytest
import torch

from benchmarks.fingerprints import fingerprint
from fedweave.algorithms import ALGORITHMS
from fedweave.core.renamed import RENAMED
from fedweave.experiment import config
from tests import frozen
from tests.often import OFTEN


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in sorted(ALGORITHMS)]
)
def test_an_algorithm_computes_what_it_computed(name: str) -> None:
    kept = frozen.frozen("algorithms")
    torch.set_num_threads(1)
    if kept["processor"] != frozen.processor():
        pytest.skip("the last bits of this processor's kernels differ from those of the one where numbers were frozen")
    assert fingerprint(name, 0) == kept["fingerprints"][name], "python -m tests.frozen, if this is meant"


def test_every_algorithm_is_frozen() -> None:
    assert sorted(frozen.frozen("algorithms")["fingerprints"]) == sorted(ALGORITHMS)


@pytest.mark.parametrize("name", ["commands", "settings", "run_files", "sites"])
def test_what_users_rely_on_is_still_there(name: str) -> None:
    assert lacking(frozen.frozen(name), frozen.SNAPSHOTS[name]()) == []


def test_experiments_on_classes_keep_their_hash() -> None:
    """Runs that are kept, and the runs that sites count, are found by it."""
    document: dict[str, Any] = {"data": {"name": "digits"}, "partition": {"name": "dirichlet"}}
    assert config.config_hash(config.resolve(document).plain())[:16] == "cceaadf0f4f125c7"
    links = config.resolve({**document, "data": {"name": "digits", "task": "links"}}).algorithm.values
    assert links["weight_decay"] == 0.0


def lacking(kept: Any, now: Any, path: str = "") -> list[str]:
    """What `kept` holds and `now` does not; more may be there now. A setting may have another name since
    (`core.renamed`, which test_renamed.py tries)."""
    if isinstance(kept, dict):
        kept = {name if name in now else RENAMED.get(name, name): value for name, value in kept.items()}
    if isinstance(kept, dict):
        return [
            problem
            for key, value in kept.items()
            for problem in (lacking(value, now[key], f"{path}.{key}") if key in now else [f"{path}.{key} is gone"])
        ]
    if isinstance(kept, list):
        return [f"{path}: {one} is gone" for one in kept if one not in now and RENAMED.get(str(one)) not in now]
    if isinstance(kept, str) and kept in RENAMED:
        kept = RENAMED[kept]
    return [] if kept == now else [f"{path}: {kept} became {now}"]


def test_what_is_gone_or_changed_is_found() -> None:
    kept = {"a": ["x", "y"], "b": {"c": 1}}
    assert lacking(kept, {"a": ["y", "x", "z"], "b": {"c": 1, "d": 2}}) == []
    assert lacking(kept, {"a": ["y"], "b": {"c": 2}}) == [".a: x is gone", ".b.c: 1 became 2"]
    assert lacking(kept, {"a": ["x", "y"]}) == [".b is gone"]
