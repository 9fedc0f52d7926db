"""Clients whose data changes: loop = vmap, resumed = uninterrupted, and nothing of the data leaves."""

from typing import Any

import pytest
import torch

from fedweave.core.tree import Tree, decode, encode, leaves
from fedweave.experiment.rounds import train
from tests.contract.changing import KINDS
from tests.contract.federations import BytesEngine, distance, federation, model

ROUNDS, HALF = 4, 2
NET = model()
SLOW = pytest.mark.slow
every_kind = pytest.mark.parametrize("name", KINDS)


def run(name: str, fed: Any, rounds: int = ROUNDS, resume: Any = None, summary: Any = None) -> Tree:
    made = KINDS[name](NET, every=1 + (name == "mending"))
    *_, last = train(made, fed, rounds, eval_every=2, resume=resume, summary=summary)
    return {
        "server": last.state,
        "clients": fed.snapshot(),
        "data": numbers(fed.snapshot_data()),
        "summary": last.summary,
    }


def numbers(data: Tree) -> Tree:
    """With masks as whole numbers."""
    return {path: leaf.long() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool else leaf
            for path, leaf in leaves(data)}  # fmt: skip


@pytest.fixture(scope="module")
def specified() -> dict[str, tuple[Any, Tree]]:
    """Of every kind the federation and what is left where clients run one after the other."""
    feds = {name: federation(mode="loop") for name in KINDS}
    return {name: (fed, run(name, fed)) for name, fed in feds.items()}


@pytest.fixture
def outcomes(specified: dict[str, tuple[Any, Tree]]) -> dict[str, Tree]:
    return {name: left for name, (_, left) in specified.items()}


@pytest.mark.often("2-mending")
@every_kind
@pytest.mark.parametrize("chunk", [pytest.param(0, marks=SLOW), pytest.param(1, marks=SLOW), 2])
def test_vectorized_equals_loop_bit_for_bit(name: str, chunk: int, outcomes: dict[str, Tree]) -> None:
    assert distance(run(name, federation(mode="vmap", chunk=chunk)), outcomes[name]) == 0


@pytest.mark.often("dropping")
@every_kind
def test_in_double_precision_too(name: str) -> None:
    loop, fast = (run(name, federation(mode=mode, dtype=torch.float64)) for mode in ("loop", "vmap"))
    assert distance(loop, fast) <= 1e-9


@pytest.mark.often("dropping")
@every_kind
def test_only_bytes_pass_and_none_of_them_is_data(name: str, outcomes: dict[str, Tree]) -> None:
    fed = federation(engine=BytesEngine)
    assert distance(run(name, fed), outcomes[name]) == 0
    table = fed.ledger.table().to_pylist()
    assert fed.ledger.bytes_up == fed.passed["up"]
    told = {row["key"] for row in table if row["step"].endswith("change") and row["direction"] == "up"}
    assert told - {"(names and framing)"} == ({"changed"} if name == "drifting" else set())


@pytest.mark.often("vmap-drifting")
@every_kind
@pytest.mark.parametrize("mode", [pytest.param("loop", marks=SLOW), "vmap"])
def test_resumed_equals_uninterrupted(name: str, mode: str, outcomes: dict[str, Tree]) -> None:
    first = federation(mode=mode)
    half = run(name, first, HALF)
    saved = decode(encode({"state": half["server"], "clients": first.snapshot(), "data": first.snapshot_data()}))
    second = federation(mode=mode)
    run(name, second, 1)  # data that the checkpoint does not know
    second.restore(saved["clients"], saved["data"])
    assert distance(run(name, second, resume=(HALF, saved["state"]), summary=half["summary"]), outcomes[name]) == 0


@every_kind
def test_the_data_really_changes(name: str, specified: dict[str, tuple[Any, Tree]]) -> None:
    fed, still = federation(mode="loop"), federation(mode="loop")
    fed.restore({}, specified[name][0].snapshot_data())
    assert distance({"w": run(name, fed, 1)["server"]["w"]}, {"w": run(name, still, 1)["server"]["w"]}) > 0
    changed = {client: "graph" in kept for client, kept in fed.snapshot_data().items()}
    assert changed == {f"site-{i}": name != "dropping" or i != 4 for i in range(5)}


def test_mending_moves_clients_to_other_sizes_and_takes_their_state_along(
    specified: dict[str, tuple[Any, Tree]],
) -> None:
    fed, still = specified["mending"][0], federation()
    data, states = fed.snapshot_data(), fed.snapshot()
    rows = {client: data[client]["graph"]["rows"] for client in fed.clients}
    assert any(rows[client] != len(still.graphs[client].y) for client in fed.clients)
    for client in fed.clients:
        seen = states[client]["seen"]
        n = int(still.graphs[client].real.sum())
        assert len(seen) == rows[client]
        assert (seen[:n] == ROUNDS).all()
        assert set(seen[n:].tolist()) <= {0, 1, 3}  # added in rounds 2 and 4
