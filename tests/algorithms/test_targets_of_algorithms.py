"""Which algorithms learn numbers and several labels: each trains, or refuses before it does."""

from math import isfinite

import pytest

import fedweave
from fedweave.algorithms import ALGORITHMS
from fedweave.core.algorithm import capabilities
from fedweave.models.gcn import GCN
from fedweave.models.gin import GIN
from fedweave.models.sage import SAGE
from fedweave.models.star import Star
from tests.often import OFTEN, is_special
from tests.refusals import refusal
from tests.targets import numbers, several_labels, split

SETTINGS = {"fairgfl": {"estimator": "none"}, "scaffold": {"lr": 0.01}}
OF_CLASSES = {"adafgl", "cffl", "f2gnn", "fairaug", "fairfed", "feddep", "fedego", "fedgcn", "fedgta"}
OF_CLASSES |= {"fedproto", "fedsage_plus", "fedtad", "fedtgp", "fggp", "fgssl", "glasu", "vfl", "vfgnn"}
OF_CLASSES |= {"standalone", "simulated_centralized", "pooled_gnn"}


NORMS = {"fedbn": "batch"}


def plugin(name):
    asked = capabilities(ALGORITHMS[name])
    if asked.model == "star":
        return Star(hidden=8, pool="sum")
    if asked.graph_level:
        return GIN(hidden=8, layers=2, pool="sum")
    return SAGE(hidden=8, layers=3) if name == "fedego" else GCN(hidden=8, layers=2, norm=NORMS.get(name, "none"))


@pytest.mark.often(
    *(f"{name}-numbers-rmse" for name in ALGORITHMS if name in OF_CLASSES or not is_special(name)),
    *(f"{name}-several_labels-auc" for name in ALGORITHMS if name in OF_CLASSES or name in OFTEN),
)
@pytest.mark.parametrize(("make", "metric"), [(numbers, "rmse"), (several_labels, "auc")])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_learns_what_is_no_class_or_refuses_it(name, make, metric):
    data = make("graph" if capabilities(ALGORITHMS[name]).graph_level else "node", count=60)
    algorithm = ALGORITHMS[name](plugin(name).build(data.features, data.outputs), **SETTINGS.get(name, {}))

    def run():
        fed = fedweave.federation(data, split(data), algorithm, seed=0)
        *_, last = fedweave.train(algorithm, fed, rounds=2)
        return last.summary

    if name in OF_CLASSES:
        with refusal("config.class-algorithm", data.name):
            run()
    else:
        summary = run()
        assert isfinite(summary[f"global/{metric}"])
        assert isfinite(summary[f"local/{metric}"])
