"""Two runs that differ in a few examples: what the server reads off their difference, and what keeps it from that."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.sites.flare.accounts import Exclusion
from fedweave.sites.flare.admission import check_exclusion
from fedweave.sites.flare.requests import MISTAKEN
from fedweave.sites.flare.sitefile import SITE_FILE, Rules
from tests.refusals import refusal
from tests.security.cheating import SITE, Cheat, agreed, reply, set_policy

# A batch of all training nodes, without edges between them.
PLAIN = {"local_steps": 1, "optimizer": "sgd", "lr": 1.0, "weight_decay": 0.0}
CONFIG = agreed(model={"name": "mlp", "hidden": 16, "dropout": 0.0}, algorithm_settings=PLAIN)


def forget(project: Path, ids: list[int]) -> None:
    """Let the owner list these nodes."""
    forget_named(project, [str(number) for number in ids])


def forget_named(project: Path, names: list[str]) -> None:
    (project / SITE / "forget.txt").write_text("".join(f"{name}\n" for name in names))
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


def is_refused(project: Path, run: str, config: Any = CONFIG) -> bool:
    """Whether the site refuses the run for what it leaves out; the server hears what it hears of every mistake in a
    site's settings."""
    server = Cheat(project, config, run)
    heard = server.join().refusal
    if not heard:
        return False
    assert heard.startswith(MISTAKEN)
    assert not any(word in heard for word in ("forget", "min_nodes", "left", "earlier"))
    [note] = server.refusals()
    assert note["code"] == "forget.few"
    return True


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
    assert is_refused(project, "r2", again)
    forget(project, nodes[:10])
    gradient(project, "r3", again)
    gradient(project, "r4")
    forget(project, nodes[:11])
    assert is_refused(project, "r5", again)
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
    assert is_refused(project, "r2")


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
    (project / SITE / "ledgers/marks.key").unlink()
    refused = Cheat(project, CONFIG, "lost")
    assert refused.join().refusal.startswith(MISTAKEN)
    assert [note["code"] for note in refused.refusals()] == ["forget.key"]
    set_policy(project, "min_nodes = 1")
    Cheat(project, CONFIG, "r2").join()
    [other] = [note for note in server.records("r2").notes if note["note"] == "data"]
    assert not {*note["left_out"]} & {*other["left_out"]}


def rewrite(project: Path, old: str, new: str) -> None:
    path = project / SITE / SITE_FILE
    text = re.sub(old, new, path.read_text(), flags=re.M)
    assert text != path.read_text()
    path.write_text(text)


def rename_classes(project: Path) -> None:
    rewrite(project, r"^classes = 3", 'labels = ["a", "b", "c"]')


def reverse_rows(project: Path) -> None:
    """The same rows, where they have ids, and the same columns in another order."""
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    n = len(arrays["y"])
    x = sp.csr_matrix((arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), arrays["x_shape"])
    x = sp.csr_matrix(x.toarray()[::-1, ::-1])
    arrays |= {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "y": arrays["y"][::-1]}
    arrays |= {"ids": arrays["ids"][::-1], "edge_index": np.unique(n - 1 - arrays["edge_index"], axis=1)}
    arrays |= {key: n - 1 - arrays[key] for key in ("train_idx", "val_idx", "test_idx")}
    np.savez(file, **arrays)


def rewrite_file(project: Path) -> None:
    """With names of columns, another label and another split, and compressed."""
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    y, train, test = (arrays[key].copy() for key in ("y", "train_idx", "test_idx"))
    y[train[0]] = (y[train[0]] + 1) % 3
    names = np.array([f"column {at}" for at in range(arrays["x_shape"][1])])
    arrays |= {"y": y, "train_idx": train[:-1], "test_idx": np.append(test, train[-1]), "feature_names": names}
    np.savez_compressed(file, **arrays)


EDITS: dict[str, Callable[[Path], None]] = {
    "the classes have names": rename_classes,
    "features are scaled": partial(rewrite, old='^normalize = "none"', new='normalize = "standard"'),
    "self loops count": partial(rewrite, old=r"^\[data\]", new='[data]\nloops = "keep"'),
    "another secret": lambda project: (project / SITE / "privacy.secret").write_text("6" * 64) and None,
    "rows in another order": reverse_rows,
    "the file is written anew": rewrite_file,
}


@pytest.mark.parametrize("edits", [*([name] for name in EDITS), ["features are scaled", "the file is written anew"]])
@pytest.mark.parametrize("ids", [True, False])
def test_no_edit_that_leaves_the_rows_makes_new_data(project: Path, edits: list[str], ids: bool) -> None:
    """The owner changes how the rows are read or written; the server runs before and after, with one node less."""
    if not ids and "rows in another order" in edits:
        return  # without ids a row is its number
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    names = (
        [f"person-{number:04}" for number in range(len(arrays["y"]))] if ids else [*map(str, range(len(arrays["y"])))]
    )
    if ids:
        np.savez(file, **arrays | {"ids": np.array(names)})
    nodes = others(project)
    forget_named(project, [names[node] for node in nodes[:12]])
    gradient(project, "r1")
    for at, edit in enumerate(edits):
        EDITS[edit](project)
        forget_named(project, [names[node] for node in nodes[:13]])
        assert is_refused(project, f"few{at}")
        forget_named(project, [names[node] for node in nodes[:12]])
        Cheat(project, CONFIG, f"same{at}").join()


def marks(*ranges: tuple[int, int]) -> frozenset[str]:
    return frozenset(str(number) for first, end in ranges for number in range(first, end))


NONE, A, B, X = marks(), marks((0, 10)), marks((10, 20)), marks((20, 21))
CHAINS = {
    "a single one": [NONE, X],
    "a single one more": [A, A | X],
    "one by three differences": [NONE, A | B | X, A, B],
    "what no run has used": [A | X, B | X, A | B],
    "a part of what left": [NONE, A | B, marks((0, 12))],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("kind", ["examples", "training"])
def test_no_sequence_of_runs_tells_few_apart(chain: list[frozenset[str]], kind: str) -> None:
    """In whatever order; also where any two of the runs differ in ten, or where many differ and few of training."""

    def left_out(out: frozenset[str]) -> Exclusion:
        if kind == "examples":
            return Exclusion("data", "", out)
        return Exclusion("data", "", out | {f"{one}, {more}" for one in out for more in range(20)}, out)

    for runs in permutations([left_out(out) for out in chain]):
        for at, run in enumerate(runs):
            check_exclusion(Rules(min_nodes=1), run, runs[:at])
        with refusal("forget.few"):
            for at, run in enumerate(runs):
                check_exclusion(Rules(), run, runs[:at])


def test_what_was_accepted_once_is_not_accepted_for_ever() -> None:
    """A run without a single one, and the owner has raised the bound again."""
    with refusal("forget.few"):
        check_exclusion(Rules(), Exclusion("data", "", X), [Exclusion("data", "", NONE), Exclusion("data", "", X)])


@pytest.mark.parametrize(
    ("earlier", "now"), [([], X), ([NONE], A), ([NONE, A], A | B), ([A, A | B], NONE), ([A | X], A | B | X)]
)
def test_lists_that_grow_by_many_are_allowed(earlier: list[frozenset[str]], now: frozenset[str]) -> None:
    check_exclusion(Rules(), Exclusion("data", "rest", now), [Exclusion("data", "", out) for out in earlier])


def remove(project: Path, nodes: list[int]) -> np.ndarray:
    """Let the owner remove rows from the site's file; returns the new number of each old row, -1 of those removed."""
    file = project / SITE / "data.npz"
    arrays = dict(np.load(file))
    stays = ~np.isin(np.arange(len(arrays["y"])), nodes)
    place = np.where(stays, np.cumsum(stays) - 1, -1)
    x = sp.csr_matrix((arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), arrays["x_shape"])[stays]
    arrays |= {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    inside = stays[arrays["edge_index"]].all(0)
    arrays |= {"y": arrays["y"][stays], "edge_index": place[arrays["edge_index"][:, inside]]}
    arrays |= {key: place[arrays[key][stays[arrays[key]]]] for key in ("train_idx", "val_idx", "test_idx")}
    np.savez(file, **arrays)
    return place


@pytest.mark.parametrize("more", [3, 10])
def test_rows_that_are_removed_later_make_no_new_data(project: Path, more: int) -> None:
    """The documented way: list, run, remove the rows, list others. Three others would be told by the difference."""
    nodes = others(project)
    gradient(project, "r1")
    forget(project, nodes[:10])
    gradient(project, "r2")
    place = remove(project, nodes[:10])
    forget(project, place[nodes[10 : 10 + more]].tolist())
    assert is_refused(project, "r3") == (more < 10)


def test_a_run_that_begins_again_notes_another_list(project: Path) -> None:
    """A job that ended before its first checkpoint begins its run again, maybe with another list."""
    nodes = others(project)
    gradient(project, "r1")
    forget(project, nodes[:12])
    gradient(project, "r1")
    forget(project, nodes[:13])
    assert is_refused(project, "r2")
