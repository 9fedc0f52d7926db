"""Labels by randomized response over many runs: a second draw would let the server vote (docs/security.md)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.federation import Client
from fedweave.ops import hashing
from fedweave.sites.flare.holdings import hold
from fedweave.sites.flare.journal import entries, journals
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.scores import Scoring
from fedweave.sites.flare.sitefile import SITE_FILE
from fedweave.sites.flare.steps import label_secrets
from tests.security.cheating import SITE, Cheat, agreed, reply, set_policy
from tests.security.test_few_left_out import forget_named, others, remove, reverse_rows

EPSILON = 1.0


def named(project: Path) -> list[str]:
    """The nodes, which get ids."""
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    names = [f"person-{number:04}" for number in range(len(arrays["y"]))]
    np.savez(file, **arrays | {"ids": np.array(names)})
    return names


def drawn(project: Path, names: list[str]) -> dict[str, int]:
    """{node: its label as scores of a run see it}. names: of the file's rows."""
    about, _ = read_checked(project / SITE / SITE_FILE)
    held = hold(about, project / SITE, agreed())
    secrets, key = label_secrets(project / SITE, held.version), hashing.from_bytes(b"another in every run")
    client = Client(held.graph, {}, torch.zeros((), dtype=torch.int64), key, label_noise=secrets)
    Scoring(epsilon=EPSILON).show(client, held.data.classes)
    out = {*(project / SITE / "forget.txt").read_text().split()} if about.forget else {*()}
    here = held.data.ids or [name for name in names if name not in out]
    assert len(here) == held.data.nodes
    return dict(zip(here, client.graph.y[: len(here)].tolist(), strict=True))  # the rest is padding


@pytest.mark.parametrize("ids", [True, False])
def test_a_list_of_what_to_forget_draws_no_label_anew(project: Path, ids: bool) -> None:
    """Lists that grow: every node that is left has the one label that it had before."""
    count = len(np.load(project / SITE / "data.npz")["y"])
    names = named(project) if ids else [*map(str, range(count))]
    nodes = others(project)
    seen = [drawn(project, names)]
    for leave in (12, 24, 1):
        forget_named(project, [names[node] for node in nodes[:leave]])
        seen.append(drawn(project, names))
        assert len(seen[-1]) == count - leave
    for one in seen[1:]:
        assert one.items() <= seen[0].items()
    truth = np.load(project / SITE / "data.npz")["y"]
    kept = np.mean([seen[0][name] == truth[at] for at, name in enumerate(names)])
    assert 0.35 < kept < 0.8  # e / (e + 2) = 0.58 of three classes


def another_secret(project: Path) -> None:
    (project / SITE / "privacy.secret").write_text("6" * 64)


def fewer_rows(project: Path) -> None:
    path = project / SITE / "data.npz"
    ids, gone = np.load(path)["ids"], others(project)[:12]
    remove(project, gone)
    np.savez(path, **dict(np.load(path)) | {"ids": np.delete(ids, gone)})


def other_labels(project: Path) -> None:
    """Of half the nodes."""
    path = project / SITE / "data.npz"
    arrays = dict(np.load(path))
    half = np.arange(len(arrays["y"])) % 2
    np.savez(path, **arrays | {"y": (arrays["y"] + half) % 3})


@pytest.mark.parametrize("change", [another_secret, reverse_rows, fewer_rows, other_labels])
def test_what_changes_of_others_draws_no_label_anew(project: Path, change: Callable[[Path], None]) -> None:
    """Only a node whose own label has changed has a draw of its new label."""
    names = named(project)
    before = drawn(project, names)
    change(project)
    after = drawn(project, names)
    same = {name for at, name in enumerate(names) if change is not other_labels or at % 2 == 0} & after.keys()
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    if change is other_labels:  # drawn by itself: where the draw of the old one kept it, that of the new one may not
        rest = [name for name in names if name not in same]
        shift = np.mean([(after[name] - before[name]) % 3 == 1 for name in rest])
        assert shift < 0.7  # 0.42 of independent draws, and 1 if both had the same random words


def test_scores_under_lists_of_what_to_forget_cost_one_epsilon(project: Path) -> None:
    set_policy(project, f"score_epsilon = {EPSILON}\nmin_nodes = 1")
    names = named(project)
    for run in range(4):
        if run:
            forget_named(project, names[: 3 * run])
        server = Cheat(project, run=f"r{run}")
        assert not server.join().refusal
        reply(server.call("FedAvg.train", 1))
        assert reply(server.call("FedAvg.score", 1))["own"]["accuracy"].any()
        journal = [one for path in journals(server.folder) for one in entries(path)]
        scores = [one for one in journal if one.step == "FedAvg.score"]
        assert len(scores) == run + 1
        assert Spent.of(scores).epsilon(1e-5) == EPSILON
