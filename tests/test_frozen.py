"""No algorithm's numbers change without a word: fingerprints of short runs, `tests/frozen/algorithms.json`.

After a change that is meant: `python -m tests.test_frozen` writes the file again.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from benchmarks.fingerprints import fingerprint
from fedweave.algorithms import ALGORITHMS
from tests.often import OFTEN

FILE = Path(__file__).parent / "frozen/algorithms.json"


def processor() -> str:
    """A digest of some kernels' results: where it is equal, all bits are to be equal."""
    x = torch.linspace(-3, 3, 96 * 96).reshape(96, 96)
    parts = [x @ x.mT, x.exp(), x.sigmoid(), (x.abs() + 1).log(), x.softmax(1), x.erfinv().nan_to_num(), x.sum(0)]
    parts += [x.double() @ x.double(), (x.double().abs() + 1).log(), torch.linalg.vector_norm(x)]
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()[:16]


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in sorted(ALGORITHMS)]
)
def test_an_algorithm_computes_what_it_computed(name: str) -> None:
    frozen = json.loads(FILE.read_text())
    torch.set_num_threads(1)
    if frozen["processor"] != processor():
        pytest.skip("the last bits of this processor's kernels differ from those of the one where numbers were frozen")
    assert fingerprint(name, 0) == frozen["fingerprints"][name], "python -m tests.test_frozen, if this is meant"


def test_every_algorithm_is_frozen() -> None:
    assert sorted(json.loads(FILE.read_text())["fingerprints"]) == sorted(ALGORITHMS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fingerprints = {name: fingerprint(name, 0) for name in sorted(ALGORITHMS)}
    content = {"processor": processor(), "fingerprints": fingerprints}
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
