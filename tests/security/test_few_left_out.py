"""Two runs that differ in a few examples: what the server reads off their difference, and what keeps it from that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.deploy.flare.sitefile import SITE_FILE
from tests.security.cheating import SITE, Cheat, agreed, reply, set_policy

# A batch of all training nodes, without edges between them.
PLAIN = {"local_steps": 1, "optimizer": "sgd", "lr": 1.0, "weight_decay": 0.0}
CONFIG = agreed(model={"name": "mlp", "hidden": 16, "dropout": 0.0}, algorithm_settings=PLAIN)


def forget(project: Path, ids: list[int]) -> None:
    """Let the owner list these nodes."""
    (project / SITE / "forget.txt").write_text("".join(f"{number}\n" for number in ids))
    path = project / SITE / SITE_FILE
    if "forget = " not in path.read_text():
        path.write_text(path.read_text().replace("[data]\n", '[data]\nforget = "forget.txt"\n'))


def others(project: Path) -> list[int]:
    """Nodes that the site does not train on: it has no more than ten of the others."""
    arrays = np.load(project / SITE / "data.npz")
    return [int(node) for pair in zip(arrays["val_idx"], arrays["test_idx"], strict=True) for node in pair]


def gradient(project: Path, run: str, config: Any = CONFIG) -> np.ndarray:
    """float64 [classes]: the sum over training nodes of p − y, from the update of the last layer's bias."""
    server = Cheat(project, config, run)
    split = reply(server.join())["split"]
    update = reply(server.call("FedAvg.train", 1))["update"]
    last = max((path for path in update if "bias" in update[path]), key=int)
    return -update[last]["bias"].double().numpy() * int(split[0])


def test_the_difference_of_two_runs_tells_the_label_of_the_one_left_out(project: Path) -> None:
    """The owner has accepted single nodes: p − y of one node, whose only negative entry is its label."""
    set_policy(project, "min_nodes = 1")
    arrays = np.load(project / SITE / "data.npz")
    nodes = arrays["train_idx"]
    whole, read = gradient(project, "all"), []
    for at, node in enumerate(nodes[:8]):
        forget(project, [int(node)])
        apart = whole - gradient(project, f"without{at}")
        assert apart.sum() == pytest.approx(0, abs=1e-4)
        read.append(int(apart.argmin()))
    assert read == arrays["y"][nodes[:8]].tolist()


@pytest.mark.parametrize("other", ["same", "seed"])
def test_a_site_leaves_out_no_few(project: Path, other: str) -> None:
    """Whatever the documents say, and in both directions; many may leave, and the same ones again."""
    again = CONFIG if other == "same" else replace(CONFIG, general=replace(CONFIG.general, seed=99))
    nodes = others(project)
    gradient(project, "r1")
    forget(project, nodes[:9])
    refused = Cheat(project, again, "r2").join()
    assert "policy.min_nodes" in refused.refusal
    assert "9" not in refused.refusal.replace("10", "")
    forget(project, nodes[:10])
    gradient(project, "r3", again)
    gradient(project, "r4")
    forget(project, nodes[:11])
    assert "policy.min_nodes" in Cheat(project, again, "r5").join().refusal
    path = project / SITE / SITE_FILE
    path.write_text(path.read_text().replace('forget = "forget.txt"\n', ""))
    gradient(project, "r6")


def test_runs_of_an_earlier_version_count_as_whole(project: Path) -> None:
    """Their journals do not say what they left out."""
    nodes = others(project)
    gradient(project, "r1")
    path = project / SITE / "ledgers/r1.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"note": "data"' not in line))
    forget(project, nodes[:3])
    assert "policy.min_nodes" in Cheat(project, CONFIG, "r2").join().refusal


def test_new_data_may_leave_out_few(project: Path) -> None:
    gradient(project, "r1")
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    np.savez(file, **arrays | {"x_data": arrays["x_data"] + 1})
    forget(project, others(project)[:3])
    gradient(project, "r2")


def test_ids_are_in_no_journal_and_no_reply(project: Path) -> None:
    """The journal knows them by hashes that are keyed with the site's secret."""
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    np.savez(file, **arrays | {"ids": np.array([f"person-{n}" for n in range(len(arrays["y"]))])})
    nodes = others(project)[:12]
    (project / SITE / "forget.txt").write_text("".join(f"person-{node}\n" for node in nodes))
    forget_file = project / SITE / SITE_FILE
    forget_file.write_text(forget_file.read_text().replace("[data]\n", '[data]\nforget = "forget.txt"\n'))
    server = Cheat(project, CONFIG, "r1")
    answers = [server.join(), server.call("FedAvg.train", 1)]
    assert not any(b"person" in answer.blob or "person" in answer.refusal + answer.note for answer in answers)
    journal = (project / SITE / "ledgers/r1.jsonl").read_text()
    assert "person" not in journal
    [note] = [note for note in server.records().notes if note["note"] == "data"]
    assert len(note["left_out"]) == 12
    (project / SITE / "privacy.secret").write_text("6" * 64)
    Cheat(project, CONFIG, "r2").join()
    [other] = [note for note in server.records("r2").notes if note["note"] == "data"]
    assert not {*note["left_out"]} & {*other["left_out"]}
