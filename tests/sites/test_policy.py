"""The bounds of a site's policy to the last message, and what is known of a run before it begins."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.algorithm import Algorithm, Calls
from fedweave.core.federation import Client, Sends, StepInfo, on_client
from fedweave.core.graph import Graph, make_graph
from fedweave.core.ledger_columns import Entry, Line
from fedweave.core.mechanism import LDP, Applied, Clipped, Gaussian, Mixup, SecureSum
from fedweave.core.tree import Tree
from fedweave.experiment.config import resolve
from fedweave.sites.flare import policy
from fedweave.sites.flare.admission import check_algorithm, check_files
from fedweave.sites.flare.foresight import check_declared, refusals
from fedweave.sites.flare.policy import PolicyViolation, Spent, check_reply
from fedweave.sites.flare.sitefile import Rules


def graph(train: int, val: int, nodes: int = 60, graph_of: list[int] | None = None) -> Graph:
    count = nodes if graph_of is None else max(graph_of) + 1
    masks = np.zeros((3, count), bool)
    masks[0, :train], masks[1, train : train + val] = True, True
    own = None if graph_of is None else np.array(graph_of)
    return make_graph(np.ones((nodes, 2)), np.zeros((2, 0), np.int64), np.zeros(count, np.int64), masks, graph_of=own)


def entry(step: str, direction: str, clients: tuple[str, ...] = ("a",), size: int = 7, **keys: str | None) -> Entry:
    told = [Line(key, "float32", size, applied=applied) for key, applied in keys.items()]
    return Entry(1, 0, step, clients, direction, tuple(told), size, 0.0, ())


# --- what may run


@pytest.mark.parametrize(
    ("listed", "fits"),
    [((), False), (("{}/own.py",), True), (("{}/other.py", "{}/sub/../own.py"), True), (("~/own.py",), True)],
)
def test_a_file_is_run_where_it_is_listed_by_whatever_path(
    listed: tuple[str, ...], fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    rules = Rules(files=tuple(file.format(tmp_path) for file in listed))
    held(fits, "policy.files: the job names", check_files, rules, {"model": {"name": f"{tmp_path}/own.py:Own"}})


OWN = """
from dataclasses import dataclass
from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import Clip, Median, Part

@dataclass(frozen=True)
class Own(FedAvg):
    "FedAvg that clips."

    parts: tuple[Part, ...] = (Clip(1.0),)
"""


@pytest.mark.parametrize(
    ("name", "listed", "parts", "refused"),
    [
        ("fedavg", (), ["clip"], "clip"),
        ("fedavg", ("clip",), ["clip"], ""),
        ("fedavg", ("clip",), ["clip", "median"], "median"),
        ("fedavg", ("{}/sub/../own.py:Median",), ["{}/own.py:Median"], ""),
        ("{}/own.py:Own", (), None, ""),
        ("{}/own.py:Own", (), ["clip"], ""),  # as it is by itself
        ("{}/own.py:Own", (), ["clip", "median"], "median"),
    ],
)
def test_of_an_algorithms_parts_each_is_its_own_or_listed(
    name: str, listed: tuple[str, ...], parts: list[str] | None, refused: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = name.format(tmp_path)
    rules = Rules(algorithms=(own,), parts=tuple(part.format(tmp_path) for part in listed))
    settings = {} if parts is None else {"parts": [part.format(tmp_path) for part in parts]}
    algorithm = resolve({"data": {"name": "synthetic"}, "algorithm": {"name": own} | settings}).algorithm
    held(not refused, f"policy.parts: .* with the part {refused}, and", check_algorithm, rules, algorithm)


# --- to the last message


@pytest.mark.parametrize(("allowed", "count", "fits"), [(10, 10, True), (10, 9, False), (1, 1, True)])
def test_as_many_nodes_as_are_allowed_are_aligned(allowed: int, count: int, fits: bool) -> None:
    held(fits, "min_nodes", policy.check_aligned, Rules(min_nodes=allowed), count)


@pytest.mark.parametrize(("most", "fits"), [(20, True), (19, False), (None, True)])
def test_lists_are_as_long_as_is_allowed(most: int | None, fits: bool) -> None:
    held(fits, "max_ids: the list of b has 20", policy.check_lists, Rules(max_ids=most), {"a": 3, "b": 20})


@pytest.mark.parametrize(
    ("own", "few"),
    [
        (graph(10, 10), ""),
        (graph(9, 10), "train"),
        (graph(10, 9), "val"),
        (graph(10, 0), ""),  # none at all tell nothing
        (graph(0, 0, nodes=9), "all"),
        (graph(5, 5, graph_of=[i // 6 for i in range(60)]), "train"),
        (graph(0, 0, graph_of=[i // 7 for i in range(60)]), "all"),  # 9 graphs, although of 60 nodes
        (graph(10, 0, graph_of=[i // 6 for i in range(60)]), ""),
    ],
)
def test_nothing_is_done_with_a_few_examples(own: Graph, few: str) -> None:
    held(not few, rf"min_nodes: .*\({few}\)", policy.check_crowd, Rules(min_nodes=10), own)


@pytest.mark.parametrize(("batch", "train", "fits"), [(10, 30, True), (9, 30, False), (64, 9, False), (0, 9, True)])
def test_a_batch_is_never_of_fewer_examples(batch: int, train: int, fits: bool) -> None:
    """Of an algorithm that says no more than its setting."""

    @dataclass(frozen=True)
    class Own(Algorithm):
        batch: int
        init = round = evaluate = lambda self, *arguments: {}

    held(fits, "min_nodes: Own", policy.check_batches, Rules(min_nodes=10), Own((), batch), graph(train, 0), {})


@pytest.mark.parametrize(("left", "fits"), [(30, True), (31, False)])
def test_bytes_leave_up_to_the_cap(left: int, fits: bool) -> None:
    info = StepInfo.of({"n": "a count"})
    held(fits, "bytes", check_reply, Rules(bytes=100), Spent(bytes=70), {"n": 1}, left, info)


def test_epsilon_is_spent_up_to_the_cap_and_at_the_sites_delta() -> None:
    once = StepInfo.of({"c": Sends("codes", LDP(1.0, "node"))})
    codes: Tree = {"c": torch.zeros(2)}
    spent, rules = Spent(), Rules(epsilon=2.0)
    for _ in range(2):
        check_reply(rules, spent, codes, 8, once)
        spent = spent.after(8, once.mechanisms_of(codes))
    held(False, "ε = 2 is spent, 1 more exceed 2 at .*; 2 such messages fit", check_reply, rules, spent, codes, 8, once)
    noisy = StepInfo.of({"c": Sends("rows", (Clipped(1.0), Gaussian(1.0, 0.5)))})
    for delta, fits in ((1e-3, True), (1e-7, False)):
        held(fits, "at δ = 1e-07", check_reply, Rules(epsilon=1.8, delta=delta), Spent(), codes, 8, noisy)


def test_what_has_no_bound_leaves_under_a_cap_only_where_its_key_is_listed() -> None:
    info = StepInfo.of({"n": "a count", "own": "scores"})
    for listed, fits in (((), False), (("own",), False), (("n",), True), (("n", "own"), True)):
        rules = Rules(epsilon=1.0, unbounded=listed)
        held(fits, "nothing bounds what n reveals", check_reply, rules, Spent(), {"n": 1}, 8, info)


@pytest.mark.parametrize(
    ("rules", "mechanism", "fits"),
    [
        (Rules(mixup={"h": 3}), (Mixup(3),), True),
        (Rules(mixup={"h": 4}), (Mixup(2), Mixup(3)), False),  # of two the larger one, and not their sum
        (Rules(noise={"h": 0.5}), (Gaussian(1.0, 2.0),), True),  # in units of what a record changes
        (Rules(noise={"h": 0.6}), (Gaussian(1.0, 2.0),), False),
        (Rules(noise={"h": 1.0}), (Gaussian(1.0),), True),
        (Rules(secure_sum=("h",)), (SecureSum(everyone=True),), True),
        (Rules(secure_sum=("h",)), (SecureSum(),), False),
        (Rules(secure_sum=("h",), partial_sums=True), (SecureSum(),), True),
        (Rules(secure_sum=("h",), partial_sums=True), (), False),
        (Rules(deny=("h",)), (), False),
        (Rules(deny=("hidden", "x")), (), True),
    ],
)
def test_a_rule_is_met_exactly(rules: Rules, mechanism: Any, fits: bool) -> None:
    info = StepInfo.of({"h": Sends("rows", mechanism)})
    held(fits, "policy.*h ", check_reply, rules, Spent(), {"h": torch.zeros(2)}, 8, info)


def test_calls_and_bytes_are_counted_over_all_messages() -> None:
    """A message to several costs as often; what the server says is not a reply."""
    text = Applied("c", (LDP(1.0, "node"),)).text()
    told = [entry("A.train", "up", c=text), entry("A.train", "down", w=None), entry("A.train", "up", n=None)]
    spent = Spent.of([*told, entry("A.tell", "peer", ("a", "a"), c=text), entry("B.train()", "up", n=None)])
    assert spent.bytes == 7 * 6
    assert spent.calls == {"A.train": 2, "B.train()": 1}
    assert spent.account.cost.epsilon == 2.0
    for rules, fits in ({"train": 4}, True), ({"train": 3}, False), ({"A.train": 2}, False), ({"A.train": 3}, True):
        held(fits, "policy.calls: .*train has replied", policy.check_calls, Rules(calls=rules), spent, "A.train")
    held(True, "", policy.check_calls, Rules(calls={"tell": 0}), spent, "A.train")


# --- before a run


class Told:
    """What an algorithm sends in which step."""

    @on_client(sends={"n": "a count"})
    def count(self, client: Client, message: Tree) -> Tree:
        return {}

    @on_client(sends={"update": "weights", "update/0": "of the first layer", "up": "something else"})
    def train(self, client: Client, message: Tree) -> Tree:
        return {}

    @on_client(sends={"gradient": "of the labels"})
    def pull(self, client: Client, message: Tree) -> Tree:
        return {}

    @on_client(sends={"own": "scores", "own/groups": "counts by group", "measures": "more"})
    def score(self, client: Client, message: Tree) -> Tree:
        return {}

    @property
    def calls(self) -> Calls:
        return Calls((self.count,), (self.train, self.pull), (self.score,), labelled=(self.pull,))


@pytest.mark.parametrize(
    ("denied", "labels", "found"),
    [
        (("n",), True, [("count", True)]),
        (("update",), True, [("train", True)]),  # what is below such a key is not named again
        (("up", "update"), True, [("train", True), ("train", True)]),
        (("gradient",), True, [("pull", True)]),
        (("gradient",), False, []),  # which is not called at a site without labels
        (("own",), True, [("score", True)]),
        (("own/groups", "measures"), True, [("score", False), ("score", False)]),
        (("w",), True, []),
    ],
)
def test_what_a_policy_refuses_for_certain_is_known_before(
    denied: tuple[str, ...], labels: bool, found: list[tuple[str, bool]]
) -> None:
    told = Rules(deny=denied), Told().calls, labels, 3
    assert [(step.rpartition(".")[2], certain) for _, step, certain in refusals(*told)] == found
    held(not any(certain for _, certain in found), r"may not leave\. .* sends it", check_declared, *told)


def held(fits: bool, said: str, check: Any, *given: Any) -> None:
    """The check passes if it `fits`, and else says why not."""
    if fits:
        check(*given)
        return
    with pytest.raises(PolicyViolation, match=said):
        check(*given)
