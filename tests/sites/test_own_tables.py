"""Tables of a site's own: what its site.toml says of them holds, and what the others do not say likewise is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies, ReplyBatch, as_row
from fedweave.core.tree import map_leaves
from fedweave.datasets import load, npz
from fedweave.errors import ClientsMissing, DataError, UserError
from fedweave.experiment.rounds import train
from fedweave.sites.flare.agreement import check_names, common_form, common_number, confirm_names, note_unnamed_columns
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.holdings import hold
from fedweave.sites.flare.joining import describe, fingerprint
from fedweave.sites.flare.server import mistaken
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import SITE_FILE, read_site_file
from fedweave.sites.operation.checking import examine
from fedweave.sites.operation.experiments import hand_out, split
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.project import read_project
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, experiment, job_of, joined

TEXT = 'path = "data"\nclasses = 2\ncategories = {{job = [{jobs}]}}\ngroups = ["f", "m"]\n'


def with_text(project: Path, jobs: str = '"clerk", "nurse"', of: Sequence[str] = SITES) -> None:
    """Give sites tables with a column of text, declared in these words at those `of` them."""
    for site in SITES:
        folder = project / site / "data"
        folder.mkdir(exist_ok=True)
        people = [
            f"{i},{'clerk' if i % 2 else 'nurse'},{'fm'[i % 2]},{i % 2},{('train', 'val', 'test')[i % 3]}"
            for i in range(60)
        ]
        (folder / "nodes.csv").write_text("\n".join(["id,job,sens,label,split", *people]))
        (folder / "edges.csv").write_text("source,target\n" + "\n".join(f"{i},{i + 2}" for i in range(50)))
        named = jobs if site in of else '"clerk", "nurse"'
        sensitive = "sens_feature = true\n"  # the job says the same as the group
        (project / site / SITE_FILE).write_text("[data]\n" + TEXT.format(jobs=named) + sensitive)


def test_text_at_sites_is_what_all_of_them_declare(project: Path) -> None:
    config = experiment(rounds=20, algorithm_settings={"lr": 0.1})
    with_text(project)
    (project / "server/test.npz").unlink()  # of other data
    fed, algorithm, link = joined(project, config)
    assert job_of(next(iter(link.members.values()))).holdings.data.columns == ("job = clerk", "job = nurse")
    *_, last = train(algorithm, fed, 20)
    assert last.summary["local/accuracy"] == 1.0


def test_a_split_of_tables_keeps_the_ids_of_each_sites_nodes(project: Path, tmp_path: Path) -> None:
    people = [f"person{i},{i % 7},{i % 2}" for i in range(60)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,age,label", *people]))
    (tmp_path / "edges.csv").write_text("source,target\n" + "\n".join(f"person{i},person{i + 3}" for i in range(50)))
    config = experiment("fedavg", data={"name": "folder", "path": str(tmp_path)})
    hand_out(*split(config, SITES), project, SITES)
    everybody = set[int]()
    for site in SITES:
        held = npz.read(project / site / "data.npz", site)
        numbers = [int(name.removeprefix("person")) for name in held.ids]
        assert (held.y.tolist(), len(numbers)) == ([i % 2 for i in numbers], held.nodes)
        assert not everybody.intersection(numbers)
        everybody.update(numbers)
    assert not npz.read(project / "server/test.npz", "test").ids


@pytest.mark.parametrize("jobs", ['"nurse", "clerk"', '"clerk", "nurse ", "nurse"'])
def test_sites_that_declare_other_categories_are_refused_by_name(project: Path, jobs: str) -> None:
    """The same number of columns in another order, and another number."""
    with_text(project, jobs, SITES[1:2])
    replies = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0).join(experiment().plain(), "r1", -1, False)
    with refusal("user.names-differ", "bank-b"):
        check_names(replies)
    if jobs.count(",") > 1:
        with pytest.raises(UserError, match=r"features.*bank-a: 2, bank-b: 3, bank-c: 2"):
            common_number(replies, "features")


@pytest.mark.parametrize("header", ["id,age,income,label,split", "id,income,years,label,split"])
def test_sites_whose_columns_stand_in_another_order_or_are_others_are_refused(project: Path, header: str) -> None:
    """They would train one model of income at some and of age at others; a site without tables has no names to say."""
    rows = "".join(f"{at},{at}.5,{90 - at},{at % 2},{('train', 'val', 'test')[at % 3]}\n" for at in range(60))
    for site in SITES[:2]:
        folder = project / site / "data"
        folder.mkdir()
        named = header if site == SITES[1] else "id,income,age,label,split"
        (folder / "nodes.csv").write_text(f"{named}\n{rows}")
        (folder / "edges.csv").write_text("source,target\n1,2\n")
        (project / site / SITE_FILE).write_text('[data]\npath = "data"\nclasses = 2\n')
    replies = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0).join(experiment().plain(), "r1", -1, False)
    assert replies[SITES[2]]["columns"] == 0
    with pytest.raises(UserError, match=r"the features of bank-b.* at bank-a") as refused:
        check_names(replies)
    assert refused.value.code == "user.names-differ"


def with_names(project: Path, names: Sequence[Sequence[str]], **of_npz: Any) -> None:
    """Give each site columns of these names, the last one in an .npz and no names if there are none."""
    rows = "".join(f"{at},{at % 7},{90 - at},{at % 2},{('train', 'val', 'test')[at % 3]}\n" for at in range(60))
    for site, named in zip(SITES, names, strict=True):
        folder = project / site / "data"
        folder.mkdir()
        header = ",".join(["id", *(named or ("a", "b")), "label", "split"])
        (folder / "nodes.csv").write_text(f"{header}\n{rows}")
        (folder / "edges.csv").write_text("source,target\n1,2\n")
        (project / site / SITE_FILE).write_text('[data]\npath = "data"\nclasses = 2\n')
    held = load("folder", str(folder), classes=2)
    npz.write(replace(held, columns=tuple(names[-1]), **of_npz), project / SITES[-1] / "data.npz")
    (project / SITES[-1] / SITE_FILE).write_text('[data]\npath = "data.npz"\nclasses = 2\n')


def found_of(project: Path) -> Findings:
    (project / "server/test.npz").unlink(missing_ok=True)  # of other data
    return examine(project, read_project(project))


def test_an_npz_without_names_is_noted_and_no_fault(project: Path) -> None:
    with_names(project, [("age", "income")] * 2 + [()])
    replies = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0).join(experiment().plain(), "r1", -1, False)
    check_names(replies)
    said = note_unnamed_columns({site: replies[site]["columns"] > 0 for site in SITES})
    assert said.startswith("the columns of bank-c have no names and could not be compared with the others'")
    assert not note_unnamed_columns(dict.fromkeys(SITES, False))
    told = found_of(project)
    assert (told.faults, ("bank-c", said) in told.notes) == ([], True)


def test_names_of_an_npz_are_compared_with_those_of_tables(project: Path) -> None:
    with_names(project, [("age", "income")] * 2 + [("age", "debt")])
    replies = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0).join(experiment().plain(), "r1", -1, False)
    with refusal("user.names-differ", "bank-c"):
        check_names(replies)
    [(whose, fault)] = found_of(project).faults
    assert (whose, fault.partition(". ")[0]) == ("bank-c", "columns: column 2 is 'debt', and 'income' at bank-a")


def test_names_of_classes_and_groups_of_an_npz_are_those_of_the_data(project: Path) -> None:
    sensitive = np.arange(60) // 2 % 2
    with_names(project, [("age", "income")] * 3, labels=("no", "yes"), groups=("f", "m"), sensitive=sensitive)
    about, _ = read_site_file(project / SITES[-1] / SITE_FILE)
    folder = project / SITES[-1]
    told = describe(hold(about, folder, experiment()), ())
    assert [told[key] for key in ("names", "groups")] == [fingerprint(("no", "yes")), fingerprint(("f", "m"))]
    for odd in (replace(about, classes=None, labels=("yes", "no")), replace(about, classes=3)):
        with pytest.raises(DataError, match="no, yes"):
            training_graph(odd, folder)


class Told(dict[str, dict[str, int]]):
    """What sites say of their names when they join."""

    clients = property(lambda self: tuple(self))


def test_names_in_an_experiment_are_taken_where_every_site_has_them() -> None:
    named = {"names": fingerprint(("no", "yes")), "groups": fingerprint(("f", "m"))}
    alike = Told(dict.fromkeys(SITES, named))
    nothing: dict[str, Any] = {"labels": (), "groups": ()}
    assert confirm_names(alike, {}) == (nothing, [])
    told = {"labels": ["no", "yes"], "groups": None}
    assert confirm_names(alike, told) == (nothing | {"labels": ("no", "yes")}, [])
    assert confirm_names(alike, told | {"groups": ["f", "m"]})[0] == {"labels": ("no", "yes"), "groups": ("f", "m")}
    for odd in ({"names": 0}, {"names": -1}, {"names": fingerprint(("yes", "no"))}):  # numbers, kept back, others
        names, [note] = confirm_names(Told(alike | {SITES[1]: named | odd}), told)
        assert names == nothing
        assert note.startswith("the experiment calls the classes no, yes, and not every site does")


def test_another_number_of_columns_is_told_with_those_that_differ(project: Path) -> None:
    with_names(project, [("age", "income")] * 3)
    nodes = project / "bank-b/data/nodes.csv"
    head, *rows = nodes.read_text().splitlines()
    nodes.write_text("\n".join([f"{head},debt", *(f"{row},{at % 5}" for at, row in enumerate(rows))]))
    [(whose, fault)] = found_of(project).faults
    assert (whose, fault.partition(". ")[0]) == ("bank-b", "features: 3, and 2 at bank-a; it also has debt")


def test_a_column_that_says_the_same_as_sens_is_refused_in_an_npz_as_in_tables(project: Path, tmp_path: Path) -> None:
    """What a simulation was asked to train on is handed out as asked for."""
    config = experiment("fedavg", data={"name": "synthetic"})
    data, partition = split(config, SITES)
    x = np.concatenate([sp.csr_matrix(data.x).toarray(), np.ones((data.nodes, 1), np.float32)], 1)
    sensitive = np.arange(data.nodes) % 2
    x[:, -1] = 1 - sensitive
    hand_out(replace(data, x=x, sensitive=sensitive), partition, project, SITES)
    site = project / "bank-b" / SITE_FILE
    about, _ = read_site_file(site)
    assert training_graph(about, site.parent).features == data.features + 1
    with pytest.raises(
        DataError, match=rf"bank-b/data\.npz: the feature column {data.features} equals the sensitive attribute"
    ):
        training_graph(replace(about, sens_feature=False), site.parent)


@pytest.mark.parametrize("more", ['groups = ["f", "m"]', f"labels = {list('abcdefghij')}"])
def test_keys_of_another_kind_of_data_and_classes_said_twice_are_refused(project: Path, more: str) -> None:
    """Nothing that an owner declared is passed over in silence."""
    (project / "bank-b" / SITE_FILE).write_text(f'[data]\npath = "data.npz"\nclasses = 10\n{more}\n')
    link = InProcess(project)
    with refusal("clients-missing", "bank-b:") as error:
        Flare(link, SITES, ledger=Ledger(), seed=0, quorum=1.0).join(experiment().plain(), "r1", -1, False)
    assert mistaken(error.value)
    assert not mistaken(ClientsMissing("train", {"bank-b": "it failed"}, 3, 3))


@pytest.mark.parametrize(("told", "directed"), [([1, -1], True), ([0, -1], False), ([1, 0], False)])
def test_edges_have_directions_where_a_site_keeps_back_that_its_have(told: list[int], directed: bool) -> None:
    """Else an export of the model would send messages against them, too."""
    alike = {"edge_features": 1, "edge_weights": 0, "of_edges": 0}
    batches = [ReplyBatch((at,), map_leaves(as_row, {**alike, "directed": own})) for at, own in enumerate(told)]
    assert common_form(Replies(["a", "b"], batches, {}))["directed"] == directed
    batches[0] = ReplyBatch((0,), map_leaves(as_row, {**alike, "of_edges": 1, "directed": 1}))
    with refusal("user", "whether the examples are edges", "a: 1, b: 0"):
        common_form(Replies(["a", "b"], batches, {}))
