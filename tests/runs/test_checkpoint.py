"""Checkpoints: what comes back is what went in, in the same order, or it is called damaged."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from fedweave.core.stacked import RowStream, stacked_tree, unstack_states
from fedweave.core.tree import decode, encode, leaves, with_digest
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import remove_leftovers
from tests.refusals import refusal

WEIGHTS = {"z": {"w": torch.arange(6.0).reshape(2, 3)}, "a": {"b": torch.tensor([1.5])}, "none": {}, "mu": 0.1}
REACHED = Checkpoint(
    round=3, seconds=1.25, metrics=7, ledger=5, summary={"local/f1": 0.25, "global/f1": 0.5}, state=WEIGHTS
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a saved checkpoint."""
    REACHED.save(tmp_path / "checkpoint" / "state.safetensors")
    return tmp_path / "checkpoint" / "state.safetensors"


def test_round_trip_keeps_values_and_their_order(path: Path) -> None:
    found = Checkpoint.load(path)
    assert (found.round, found.seconds, found.metrics, found.ledger) == (3, 1.25, 7, 5)
    assert list(found.summary.items()) == list(REACHED.summary.items())
    assert list(found.state) == ["z", "a", "none", "mu"], "sums over leaves run in this order"
    assert found.state["none"] == {}
    for (one, value), (other, expected) in zip(leaves(found.state), leaves(WEIGHTS), strict=True):
        assert one == other
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected))


@pytest.mark.parametrize("at", [-1, 40, 0])
def test_one_flipped_bit_is_damage(path: Path, at: int) -> None:
    blob = bytearray(path.read_bytes())
    blob[at] ^= 1
    path.write_bytes(blob)
    with refusal("file.damaged", "state.safetensors"):
        Checkpoint.load(path)


def test_a_whole_file_of_other_content_is_damage(path: Path, tmp_path: Path) -> None:
    blob = path.read_bytes()
    assert blob.count(bytes(torch.tensor([1.5]).numpy())) == 1
    path.write_bytes(blob.replace(bytes(torch.tensor([1.5]).numpy()), bytes(torch.tensor([2.5]).numpy())))
    with refusal("file.damaged", "digest"):
        Checkpoint.load(path)


@pytest.mark.parametrize("about", [{"format": 99, "release": "9.0"}, {"format": None, "release": None}])
def test_a_checkpoint_of_another_format_is_refused_with_both_versions(path: Path, about: dict[str, object]) -> None:
    tree = {name: leaf for name, leaf in (decode(path.read_bytes()) | about).items() if leaf is not None}
    path.write_bytes(with_digest(encode(tree)))
    with refusal("run.format", str(about["release"] or "earlier"), version("fedweave")):
        Checkpoint.load(path)


def test_states_of_many_clients_come_back_as_they_were(tmp_path: Path) -> None:
    """They are written together by their form; forms, numbers, and the order of clients and leaves stay."""
    states = {f"c{at}": {"z": {"w": torch.tensor([at, 2.0])}, "a": torch.tensor(at), "n": 3} for at in range(100)}
    states |= {"order": {"w": torch.ones(2, 1)}, "x\ny": {"z": {"w": torch.zeros(2)}, "a": torch.tensor(7), "n": 4}}
    states = dict(sorted(states.items(), key=lambda item: len(item[0])))
    reached = replace(REACHED, fed=states, best={"round": 2, "state": WEIGHTS, "fed": dict(reversed(states.items()))})
    reached.save(tmp_path / "state")
    found = Checkpoint.load(tmp_path / "state")
    for one, other in ((found.fed, states), (found.best["fed"], reached.best["fed"])):
        one = unstack_states(one)
        assert [*one] == [*other]
        for (path, own), (there, expected) in zip(leaves(one), leaves(other), strict=True):
            assert path == there
            assert torch.equal(torch.as_tensor(own), torch.as_tensor(expected))
    assert len(decode((tmp_path / "state").read_bytes())["fed"]["alike"]) == 3


def save_and_die(path: str) -> None:
    """Save a checkpoint of 100 clients, and be killed when half of its rows are written."""

    def pieces() -> Iterator[torch.Tensor]:
        yield torch.ones(50, 100_000)
        os.kill(os.getpid(), signal.SIGKILL)

    rows = {"w": RowStream((100, 100_000), torch.float32, pieces)}
    states = stacked_tree([f"c{at}" for at in range(100)], [([f"c{at}" for at in range(100)], rows)])
    replace(REACHED, round=4, fed=states).save(Path(path))


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(path: Path) -> None:
    before = path.read_bytes()
    command = f"from tests.runs.test_checkpoint import save_and_die; save_and_die({str(path)!r})"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == -signal.SIGKILL
    half = [file for file in path.parent.iterdir() if file != path]
    assert [file.stat().st_size > 10_000_000 for file in half] == [True]
    assert path.read_bytes() == before
    assert Checkpoint.load(path).round == REACHED.round
    remove_leftovers(path.parent.parent)
    assert [*path.parent.iterdir()] == [path]
