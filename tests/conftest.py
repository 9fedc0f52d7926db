"""What all tests share: one thread, the folder of real data, and small random graphs.

PyTorch and the package are imported by the processes that run tests, not by the one that deals tests to them, for which
the others wait."""

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fedweave.core.graph import Graph

ROOT = Path(__file__).parents[1]
DATA = (ROOT / os.environ.get("FEDWEAVE_DATA", "../shared/data")).resolve()


CONTRACT = "tests/contract/test_contract.py"
# What is tried on every commit: of another algorithm with its parts or settings chosen, that it runs in batches and by
# what steps; of the others, and of those that are tried often, also what these batches compute.
PRESETS_OWE = ("it_runs_the_steps_that_it_declares",)
OTHERS_OWE = ("clients_in_batches_give_the_loops_numbers", *PRESETS_OWE)
SPECIAL_OWE = (*OTHERS_OWE, "recorded_steps_give_the_same_bits", "a_resumed_run_gives_the_same")
SHARDED = ("ditto", "fairgfl", "scaffold")  # of them also in shards: states of one's own, of pairs, and both sides'
OF_SITES = ("tests/sites/test_sites.py", "tests/sites/test_project.py")  # whose tests start and share real processes


def group(nodeid: str) -> str:
    """Tests of one file, of one algorithm of the contract, or of running sites go to one process, which makes what they
    share once."""
    file, _, test = nodeid.partition("::")
    if file == CONTRACT:
        return f"{file}[{test.partition('[')[2].rstrip(']').partition('-')[0]}]"
    return "sites" if file in OF_SITES else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Processes get groups (--dist loadscope). Marks of groups (--dist loadgroup) do not reach pytest-xdist 3.8, which
    writes them into names that pytest 9.2 does not read."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log)


def _nightly(item: pytest.Item) -> bool:
    """Whether a law is tried with `make test-slow` alone: all but those that find most, of an algorithm that is not
    among those tried often, or is another one with its parts or settings chosen."""
    from tests.often import OFTEN, is_special

    case = getattr(item, "callspec", None)
    name = case.params.get("name") if case is not None else None
    if case is None or name is None or (name in OFTEN and not is_special(name)):
        return False
    if "law" not in case.params:
        return is_special(name) and item.name.startswith("test_what_is_not_owed")
    if case.params["law"] == "shards_give_the_same_bits":
        return name not in SHARDED
    owed = SPECIAL_OWE if name in OFTEN else PRESETS_OWE if is_special(name) else OTHERS_OWE
    return case.params["law"] not in owed


def _often(items: list[pytest.Item], whole: bool) -> None:
    """The cases that `@pytest.mark.often(*ids)` does not name are for `make test-slow`. whole: whether all cases are
    here, so that a test of which none is left is a mistake."""
    left: dict[str, bool] = {}
    for item in items:
        if mark := item.get_closest_marker("often"):
            chosen = item.callspec.id in mark.args  # type: ignore[attr-defined]
            test = item.nodeid.partition("[")[0]
            left[test] = left.get(test, False) or chosen
            if not chosen:
                item.add_marker(pytest.mark.slow)
    if whole and (none := [test for test, any_left in left.items() if not any_left]):
        raise pytest.UsageError(f"@pytest.mark.often names no case of {none}")


def pytest_configure(config: pytest.Config) -> None:
    """A mark of this suite's own."""
    config.addinivalue_line("markers", "often(*ids): cases that are tried on every commit, the others if slow ones are")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay, and are not searched for garbage again and again; the rest is, at every 10,000 objects
    rather than 700: this takes a twelfth of the time of many tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sites, which are mostly waited for, come first and the algorithms, of which there are many, last, so that no
    process is left alone with a long group (--no-loadscope-reorder)."""
    import torch

    torch.set_num_threads(1)
    for item in items:
        if item.nodeid.startswith(CONTRACT) and _nightly(item):
            item.add_marker(pytest.mark.slow)
    _often(items, whole=not any("::" in arg for arg in config.args))
    items.sort(key=lambda item: {"sites": 0}.get(group(item.nodeid), 1 + item.nodeid.startswith(CONTRACT)))


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test loses its power: what is written need not have reached the disk, a wait of thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _few_shelves() -> Iterator[None]:
    """The shelf takes longer than a short run: runs of this process have it where tests ask for it
    (`evaluation.shelf = true`), and the default, "auto", measures none."""
    from fedweave.experiment.runs import run
    from fedweave.experiment.shelf.runs import ShelfResult, shelf_of_run

    def measured(built: Any, judging: Any, enabled: bool | str, *about: Any) -> ShelfResult:
        return ShelfResult() if enabled == "auto" else shelf_of_run(built, judging, enabled, *about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "shelf_of_run", measured)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_training_alone() -> Iterator[None]:
    """The same model at each member alone doubles the time of a run. Runs of this process train it where they ask for
    it (evaluation.alone = true), as those of tests/runs/test_alone.py do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedweave.experiment.runs.alone.MAX_CLIENTS", 0)
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets."""
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}; set FEDWEAVE_DATA to the folder of data sets")
    return DATA


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of arithmetic written apart from the package."""
    folder = (ROOT / os.environ.get("FEDWEAVE_REFERENCE", "../shared/reference")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no references in {folder}; set FEDWEAVE_REFERENCE to their folder")
    return folder


@pytest.fixture(scope="session")
def oracles(reference: Path) -> ModuleType:
    """The formulas of the algorithms in NumPy, written apart from the package."""
    spec = importlib.util.spec_from_file_location("oracles", reference / "oracles.py")
    if spec is None or spec.loader is None:
        pytest.skip(f"no oracles.py in {reference}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def baselines(reference: Path, oracles: ModuleType) -> ModuleType:
    """The further baselines' formulas, which build on those of `oracles`."""
    spec = importlib.util.spec_from_file_location("oracles_baselines", reference / "oracles_baselines.py")
    if spec is None or spec.loader is None or not (reference / "oracles_baselines.py").exists():
        pytest.skip(f"no oracles_baselines.py in {reference}")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "oracles", oracles)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_graphs() -> "Callable[..., dict[str, Graph]]":
    """({client: nodes} or sizes, features, **options of `random_graph`) -> {client: graph}."""
    from tests.random_graphs import random_graph

    def made(sizes: "dict[str, int] | Sequence[int]", features: int = 6, **options: object) -> "dict[str, Graph]":
        named = sizes if isinstance(sizes, dict) else {f"site{i}": size for i, size in enumerate(sizes)}
        return {client: random_graph(n, features, seed=i, **options) for i, (client, n) in enumerate(named.items())}  # type: ignore[arg-type]

    return made
