"""FedDEP: clusters that are nobody's, draws by size, and that what is made is all it adds to FedAvg."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedweave.algorithms import ALGORITHMS, feddep
from fedweave.core import random
from fedweave.core.tree import leaves
from fedweave.experiment.rounds import train
from fedweave.learn import Adam, fit
from tests.contract.federations import CLASSES, federation, graphs, model

SMALL: dict[str, Any] = {"epochs": 2, "exchanges": 2, "hidden": (8,), "slots": 3, "clusters": 3}


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_no_mean_is_of_one_row(rows: int, k: int) -> None:
    z = torch.randn(rows, 4, generator=torch.Generator().manual_seed(10 * rows + k))
    member, mean, size = feddep.find_clusters(z, random.key(1), k)
    assert mean.shape == (k, 4)
    assert (size != 1).all()
    assert int(size.sum()) == (rows if rows > 1 else 0)
    of = F.one_hot(member, k).to(z.dtype) * (rows > 1)
    assert torch.equal(of.sum(0).long(), size)
    expected = of.T @ z / of.sum(0).clamp(min=1)[:, None]
    assert torch.allclose(mean, expected, atol=1e-6)
    assert not any(torch.equal(one, row) for one in mean[size > 0] for row in z)


def test_clusters_far_apart_are_found_and_a_row_by_itself_joins_one() -> None:
    center = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    z = torch.cat([center.repeat_interleave(5, 0) + torch.randn(15, 2), torch.tensor([[130.0, 0.0]])])
    member, mean, size = feddep.find_clusters(z, random.key(0), 4)
    assert sorted(size.tolist()) == [0, 5, 5, 6]
    assert int(member[15]) == int(member[5])
    assert torch.allclose(mean[member[0]], z[:5].mean(0), atol=1e-4)


def test_prototypes_are_drawn_by_the_size_of_their_clusters() -> None:
    size = torch.tensor([[30, 10, 0], [0, 0, 0]])
    drawn = feddep.sample_prototypes(size, 1, 4000, random.key(0))
    assert drawn.shape == (2, 3, 4000)
    assert (drawn[0].sum(0) == 1).all()
    assert float(drawn[0, 0].double().mean()) == pytest.approx(0.75, abs=0.03)
    assert not drawn[0, 2].any()
    assert not drawn[1].any()
    several = feddep.sample_prototypes(size, 5, 4000, random.key(0))
    assert float(several[0, 1].double().mean()) == pytest.approx(1 - 0.75**5, abs=0.03)


def ended(name: str, **options: Any) -> tuple[Any, set[tuple[str, str]], Any]:
    fed = federation(mode="loop")
    *_, last = train(ALGORITHMS[name](model(), **options), fed, 1, eval_every=0)
    return last.state["w"], {(row["direction"], row["key"]) for row in fed.ledger.table().to_pylist()}, fed


def test_where_generators_make_nothing_it_is_fedavg_and_prototypes_cross_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, keys, before = ended("fedavg")
    made, told, fed = ended("feddep", **SMALL)
    up, down = {("up", "prototype"), ("up", "size")}, {("down", key) for key in ("prototype", "size", "own", "classes")}
    assert told - keys == up | down
    for client, kept in fed.snapshot_data().items():
        assert kept["graph"]["x"]["width"] == before.executor.data.graphs[client].x.shape[1] + feddep.WIDTH
    assert made["0"]["weight"][-feddep.WIDTH :].any()
    assert not torch.equal(made["0"]["weight"][: -feddep.WIDTH], plain["0"]["weight"])

    def nothing(self: Any, w: Any, z: torch.Tensor, key: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return z.new_zeros(len(z), self.slots, z.shape[1]), torch.zeros_like(z)

    monkeypatch.setattr(feddep.MissingEmbeddings, "_generate", nothing)
    off, _, _ = ended("feddep", **SMALL)
    assert not off["0"]["weight"][-feddep.WIDTH :].any()
    for path, leaf in leaves(plain):
        found = dict(leaves(off))[path]
        assert torch.allclose(leaf, found[: len(leaf)], atol=1e-6)


def test_generators_come_nearer_to_the_prototypes_of_what_is_hidden() -> None:
    graph, part = graphs()["site-2"], feddep.MissingEmbeddings(**SMALL)
    hidden, n = part.draw_hidden(graph, random.key(1)), graph.nodes
    assert hidden.any()
    assert not (hidden & (graph.masks[0] | graph.masks[2])).any()
    known = {"hidden": hidden, "prototype": torch.full((1, 1, feddep.WIDTH), 0.5), "near": torch.ones(1, 1, n) > 0}
    first = part.first_weights(graph, random.key(0), CLASSES, 2 * feddep.WIDTH)
    last = fit(part.loss, first, graph, random.key(2), Adam(0.02), 40, args=known).w
    z = torch.zeros(1, feddep.WIDTH)
    before, after = ((part.net.features(w["features"], z)[:, 0] - 0.5).abs().mean() for w in (first, last))
    assert float(after) < 0.5 * float(before)
