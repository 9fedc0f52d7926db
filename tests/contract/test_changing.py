"""Laws where clients' data changes, and that it does."""

from typing import Any

import pytest

from fedweave.contract.laws import LAWS
from fedweave.contract.subject import Subject
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from tests.contract.changing import KINDS
from tests.contract.federations import BytesEngine, distance, federation, model

ROUNDS = 4
NET = model()
OWED = ("all_clients_at_once_do_in_double_precision", "nothing_but_bytes_passes", "shards_give_the_same_bits",
        "a_resumed_run_gives_the_same")  # fmt: skip
every_kind = pytest.mark.parametrize("name", KINDS)


def end(name: str, fed: Any, rounds: int = ROUNDS) -> Tree:
    """The server's state."""
    *_, last = train(KINDS[name](NET, every=1 + (name == "mending")), fed, rounds, eval_every=2)
    state: Tree = last.state
    return state


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(KINDS[request.param], {"every": 1 + (request.param == "mending")})


@pytest.mark.often("drifting-a_resumed_run_gives_the_same", *(f"dropping-{law}" for law in OWED[:2]))
@pytest.mark.parametrize("law", OWED)
def test_laws_hold(subject: Subject, law: str) -> None:
    LAWS[law](subject)


@pytest.mark.often("mending")
def test_vectorized_equals_loop_bit_for_bit(subject: Subject) -> None:
    assert distance(subject.batch_run().final, subject.loop_run().final) == 0


def test_nothing_of_the_data_leaves() -> None:
    for name in KINDS:
        fed = federation(engine=BytesEngine)
        end(name, fed, 2)
        rows = fed.ledger.table().to_pylist()
        keys = {row["key"] for row in rows if row["step"].endswith("change") and row["direction"] == "up"}
        assert keys - {"(names and framing)"} == ({"changed"} if name == "drifting" else set())


@every_kind
def test_the_data_really_changes(name: str) -> None:
    fed, changed, still = (federation(mode="loop") for _ in range(3))
    end(name, fed)
    changed.restore({}, fed.snapshot_data())
    assert distance({"w": end(name, changed, 1)["w"]}, {"w": end(name, still, 1)["w"]}) > 0
    assert {client: "graph" in kept for client, kept in fed.snapshot_data().items()} == {
        f"site-{i}": name != "dropping" or i != 4 for i in range(5)
    }


def test_mending_moves_clients_to_other_sizes_and_takes_their_state_along() -> None:
    fed, still = federation(mode="loop"), federation()
    end("mending", fed)
    data, states = fed.snapshot_data(), fed.snapshot()
    rows = {client: data[client]["graph"]["rows"] for client in fed.clients}
    assert any(rows[client] != len(still.graphs[client].y) for client in fed.clients)
    for client in fed.clients:
        seen = states[client]["seen"]
        n = int(still.graphs[client].real.sum())
        assert len(seen) == rows[client]
        assert (seen[:n] == ROUNDS).all()
        assert set(seen[n:].tolist()) <= {0, 1, 3}  # added in rounds 2 and 4
