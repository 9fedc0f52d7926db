"""The code that README and ARCHITECTURE show runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import Uniform
from fedweave.rounds import train
from tests.contract.federations import distance, federation, model

ROOT = Path(__file__).parent.parent


def code(document: str) -> str:
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return block


def test_the_readme_trains_and_shows_the_ledger_from_any_folder(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code("README.md"), {})
    *rounds, _ = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\d+ 0\.\d+", line)]
    assert len(rounds) == 9
    assert float(rounds[-1].split()[1]) > 0.8


def test_the_part_of_the_architecture_page_weighs_by_loss() -> None:
    space: dict[str, Any] = {}
    exec(code("ARCHITECTURE.md"), space)
    ends = []
    for mode in ("loop", "vmap"):
        fed = federation(mode=mode, dtype=torch.float64)
        *_, last = train(space["LossWeighted"](model(), q=2.0), fed, 30)
        ends.append(last)
    assert distance(ends[0].state, ends[1].state) <= 1e-9
    plain, even = (
        train(made, federation(dtype=torch.float64), 3)
        for made in (FedAvg(model(), parts=(Uniform(),)), space["LossWeighted"](model(), q=0.0))
    )
    assert distance([*plain][-1].state["w"], [*even][-1].state["w"]) <= 1e-12
