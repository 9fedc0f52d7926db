"""Files that an attacker wrote: checkpoints, and runs to begin from."""

import json
import os
import resource
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.cli import app
from fedweave.core.tree import encode, map_leaves, with_digest
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.checkpoint import FORMAT, Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY
from fedweave.experiment.runs.warm import Earlier
from tests import commands
from tests.refusals import refusal
from tests.security.fuzzing import limit

DOCUMENT: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "synthetic", "nodes": 120, "classes": 3, "features": 5},
    "partition": {"name": "random", "clients": 2},
    "model": {"name": "gcn", "hidden": 4},
    "algorithm": {"name": "fedavg"},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "config.toml").write_text(dumps(DOCUMENT))
    commands.run("run", folder / "config.toml", "--out", folder / "run", "--quiet")
    return folder / "run"


@pytest.fixture
def stolen(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run that the attacker changes."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# --- checkpoints


def claimed(size: int) -> bytes:
    """A file of some bytes whose header claims a tensor of `size` numbers."""
    tensor = {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}
    header = json.dumps({"__metadata__": {"python": "{}"}, "state/w": tensor}).encode()
    return with_digest(struct.pack("<Q", len(header)) + header)


def headed(size: int) -> bytes:
    """A file whose header claims to be `size` bytes long."""
    return struct.pack("<Q", size) + b"{}"


def nested(depth: int) -> bytes:
    """A file whose structure is that deep."""
    structure = '{"a":' * depth + "null" + "}" * depth
    return with_digest(encode({"structure": structure, "format": FORMAT}))


@pytest.mark.parametrize(
    "blob",
    [claimed(1 << 40), claimed((1 << 62) // 4), headed(1 << 40), headed((1 << 64) - 1), nested(200_000), b""],
    ids=[
        "a tensor of 4 TiB",
        "a tensor of 2^62 bytes",
        "a header of 1 TiB",
        "a header of 2^64 bytes",
        "depth",
        "empty",
    ],
)
def test_a_small_checkpoint_that_claims_to_be_huge_is_refused(stolen: Path, blob: bytes) -> None:
    (stolen / CHECKPOINT).write_bytes(blob)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with limit(20), refusal("file.damaged"):
        Checkpoint.load(stolen / CHECKPOINT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("what", [CHECKPOINT, SUMMARY, "ledger.parquet", "report.html"])
def test_a_run_that_goes_on_writes_through_no_link(stolen: Path, tmp_path: Path, what: str) -> None:
    """An attacker who can write into a run's folder puts a link to another file of the owner's there."""
    secret = tmp_path / "privacy.secret"
    secret.write_bytes((stolen / what).read_bytes() if (stolen / what).exists() else b"5" * 64)
    content = secret.read_bytes()
    (stolen / what).unlink(missing_ok=True)
    (stolen / what).symlink_to(secret)
    CliRunner().invoke(app, ["run", str(stolen / "config.toml"), "--resume", "--set", "rounds=2", "--out", str(stolen)])
    CliRunner().invoke(app, ["report", str(stolen)])
    assert secret.read_bytes() == content


# --- runs to begin from


def poisoned(run: Path, change: Any) -> None:
    """Weights changed in a checkpoint whose digest is right: an attacker can make it."""
    checkpoint = Checkpoint.load(run / CHECKPOINT)
    state = {**checkpoint.state, "w": map_leaves(change, checkpoint.state["w"])}
    Checkpoint(**{**checkpoint.__dict__, "state": state}).save(run / CHECKPOINT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_begin_no_run(stolen: Path, tmp_path: Path, value: float) -> None:
    poisoned(stolen, lambda leaf: torch.full_like(leaf, value))
    with refusal("init.weights"):
        Earlier.read(stolen)
    (tmp_path / "next.toml").write_text(dumps({**DOCUMENT, "init_from": str(stolen)}))
    commands.run("run", tmp_path / "next.toml", "--out", tmp_path / "next", "--quiet", code=2)
    assert not (tmp_path / "next" / SUMMARY).exists()


def test_a_poisoned_model_to_begin_from_runs_no_code_and_is_only_weights(stolen: Path, tmp_path: Path) -> None:
    """Weights of usual size that were chosen by an attacker are begun from: nothing can tell them from trained ones
    (docs/security.md: not promised). Files of another kind are refused."""
    poisoned(stolen, lambda leaf: -leaf)
    assert Earlier.read(stolen).weights
    marker = tmp_path / "ran"
    (stolen / CHECKPOINT).write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(marker) + b"'\ntR.")  # a pickle
    with refusal("file.damaged"):
        Earlier.read(stolen)
    assert not marker.exists()
