"""FairGFL's weights with F²GNN's penalty: the shipped experiment starts, and both measures of fairness are there."""

from pathlib import Path

import pytest

from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.rounds import train

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "fairgfl-f2gnn.toml"
SMALL = {
    "data": {"name": "synthetic", "nodes": 400, "classes": 2, "features": 8, "sensitive": True},
    "engine": {"mode": "loop"},
}


def summary(**changes: object) -> dict[str, float]:
    found, _ = config.read(EXPERIMENT)
    own = found.plain()
    algorithm = own["algorithm"] | {"encoder_rounds": 2, "code_size": 8, "sample": 4} | changes
    partition, model = own["partition"] | {"clients": 6}, own["model"] | {"hidden": 4}
    made = build(config.resolve(own | SMALL | {"algorithm": algorithm, "partition": partition, "model": model}))
    *_, last = train(made.algorithm, made.fed, 2)
    assert last.metrics is not None
    known = {row["metric"] for row in last.metrics.to_pylist() if row["split"] == "server"}
    assert {"overlap_estimated", "weight"} <= known
    return last.summary


@pytest.mark.slow
def test_it_starts_and_measures_fairness_between_clients_and_between_groups() -> None:
    found = summary()
    assert {"fairness/train_loss_variance", "groups/global/sp", "groups/global/eo"} <= found.keys()
    assert found["global/loss"] != summary(parts=[])["global/loss"]  # the penalty acts
