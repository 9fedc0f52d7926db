"""Next month's run of sites begins from the weights that their server has of this month's."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

import torch

from fedweave.core.tree import leaves
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, RUN, read_summary
from fedweave.experiment.runs.resuming import Stop
from fedweave.experiment.runs.run import run
from fedweave.sites.flare.folder import RUNS
from fedweave.sites.flare.server import Progress, Server, backend
from fedweave.sites.operation.experiments import with_start_run
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, experiment


def job(project: Path, number: str, config: Config) -> dict[str, torch.Tensor]:
    """The weights that the run of that number ends with, at a server and sites that were started anew."""
    root, server = project / "server", Server(number, SITES, "")
    folder = root / RUNS / number
    build = partial(server._join, root=root, folder=folder, link=InProcess(project))
    run(config, folder, Progress(), True, backend(build, Stop(lambda number: None), root))
    return dict(leaves(Checkpoint.load(folder / CHECKPOINT).state["w"]))


def test_sites_begin_from_the_earlier_run_of_that_number(project: Path, tmp_path: Path) -> None:
    config = experiment("fedavg", rounds=2)
    before = job(project, "feb", config)
    (tmp_path / RUN).write_text('{"run": "feb"}')
    still = resolve(config.plain() | {"rounds": 1, "algorithm": config.algorithm.plain() | {"lr": 1e-12}})
    warm = with_start_run(still, tmp_path)
    assert warm.general.init_from == "feb"
    now = job(project, "mar", warm)
    assert all(torch.allclose(now[path], own, atol=1e-6) for path, own in before.items())
    assert read_summary(project / "server" / RUNS / "mar/summary.json")["init_from"] == "feb"
    again = job(project, "anew", still)
    assert not torch.allclose(again["0/weight"], before["0/weight"], atol=1e-3)


@pytest.mark.parametrize("number", ["nobody", "../feb"])
def test_a_number_of_no_run_is_refused(project: Path, number: str) -> None:
    config = resolve(experiment("fedavg", rounds=2).plain() | {"init_from": number})
    with refusal("init.run"):
        job(project, "mar", config)


def test_a_directory_that_is_no_run_of_sites_is_refused(tmp_path: Path) -> None:
    with refusal("init.run"):
        with_start_run(experiment("fedavg", rounds=2), tmp_path)
