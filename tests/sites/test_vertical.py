"""Parties of a vertical federation as sites: what each gets, how they find their common nodes, and what is refused."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.algorithms.vertical.labels import DRAWN
from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, decode, encode
from fedweave.datasets import npz
from fedweave.datasets.folder import Folder
from fedweave.datasets.parties import read_party
from fedweave.errors import ClientsMissing, FedweaveError, UserError
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.sites.flare import federation
from fedweave.sites.flare.agreement import check_names
from fedweave.sites.flare.alignment import meet, read_party_data
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.inspection import Inspector
from fedweave.sites.flare.journal import journal_path, read_journal
from fedweave.sites.flare.server import Server
from fedweave.sites.flare.sitefile import FINE, SITE_FILE, read_site_file, write_site_file
from fedweave.sites.operation.experiments import split
from fedweave.sites.protocols.intersection import WIDTH as POINT
from tests.contract.federations import distance
from tests.refusals import refusal
from tests.sites.projects import (
    SITES,
    InProcess,
    bring,
    call_request,
    check_equal,
    cut_again,
    experiment,
    join_request,
    joined,
    private,
    replies_of,
    set_policy,
    simulated,
    tables,
)

INFO = StepInfo.of({"h": "representations"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "cut"),
    [
        ({"steps": 3}, {"labels": "first"}),
        ({"backward": "exchanged", "batch": 0}, {}),
        ({"aggregation": "concat", "at": (1,)}, {}),
        ({"label_epsilon": 200.0, "steps": 3}, {"labels": "first"}),  # no label changes, whoever draws
        ({"label_epsilon": 200.0, "secure_sum": True}, {"labels": "first"}),
        ({"label_epsilon": 200.0, "backward": "exchanged", "batch": 0}, {"labels": "first"}),
    ],
)
def test_the_kinds_of_glasu_are_the_simulations(project: Path, settings: dict[str, Any], cut: dict[str, Any]) -> None:
    config = experiment("glasu", rounds=3, algorithm_settings={"optimizer": "sgd", "lr": 0.5} | settings, partition=cut)
    file = cut_again(project, config) / SITES[0] / SITE_FILE
    file.write_text(file.read_text() + "true_labels = true\n")  # a simulation's scores are of labels as they are
    train_equally(project, config)


@pytest.mark.slow
def test_parties_whose_npz_files_have_ids_meet_as_those_with_tables(project: Path, tmp_path: Path) -> None:
    config = experiment(
        "glasu", rounds=2, algorithm_settings={"optimizer": "sgd", "lr": 0.5}, **tables(tmp_path / "data")
    )
    for site in SITES:
        data, _ = read_party(tmp_path / "data" / site, Folder(labels=("c0", "c1", "c2")))
        assert len(data.ids) == data.nodes > 60
        npz.write(data, project / site / "people.npz")
        about = {"path": "people.npz", "labels": ["c0", "c1", "c2"], "normalize": "standard"}
        write_site_file(project / site / SITE_FILE, about, measures=list(FINE))
    train_equally(project, config)


def train_equally(project: Path, config: Any) -> Flare:
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, config.general.rounds)
    _, sim = check_equal(last, config)
    for site, client in zip(SITES, sim.clients, strict=True):
        own, other = (
            {key: kept for key, kept in state.items() if key != DRAWN}
            for state in (private(project, site), sim.snapshot()[client])
        )
        assert distance(own, other) <= 1e-5  # but for the key of label_epsilon, which is secret at sites alone
    return fed


def test_sites_that_bring_their_own_tables_are_the_parties_of_the_simulation(project: Path, tmp_path: Path) -> None:
    """Each in an order of its own, with nodes that others lack; only one has labels; scaled over the common nodes."""
    config = experiment(
        "glasu", rounds=3, algorithm_settings={"optimizer": "sgd", "lr": 0.5}, **tables(tmp_path / "data")
    )
    fed = train_equally(bring(project, tmp_path / "data"), config)
    rows = [row for row in fed.ledger.table().to_pylist() if row["step"] in ("(join)", "(align)")]
    told = {(row["step"], row["client"], row["direction"], row["key"]): row["shape"] for row in rows}
    held = dict(zip(SITES, (80, 75, 80), strict=True))
    for site in SITES:
        assert told["(join)", site, "up", "ids"] == f"[{held[site]}, 32] uint8"
        assert told["(align)", site, "down", "common"] == "[60] int64"
    [seen] = {row["reveals"] for row in rows if row["key"] == "ids" and row["direction"] == "up"}
    assert "blinded ids" in seen


def test_a_restarted_server_finds_the_parties_as_they_were(project: Path, tmp_path: Path) -> None:
    config = experiment(
        "glasu", rounds=4, algorithm_settings={"optimizer": "sgd", "lr": 0.5}, **tables(tmp_path / "data")
    )
    fed, algorithm, _ = joined(bring(project, tmp_path / "data"), config)
    for step in train(algorithm, fed, 3):
        if step.round == 2:
            saved, state, before = fed.snapshot(), step.state, step.summary
    again, algorithm, _ = joined(project, config, after=2)
    again.restore(saved)
    *_, last = train(algorithm, again, 4, resume=(2, state), summary=before)
    expected, sim = simulated(config)
    assert last.summary == pytest.approx(expected.summary, abs=1e-5)
    for site in SITES:
        assert distance(private(project, site), sim.snapshot()[site]) <= 1e-5


def test_a_site_gets_its_own_columns_edges_and_labels_alone(project: Path) -> None:
    config = experiment("glasu", partition={"labels": "first"})
    data, partition = split(config, SITES)
    cut_again(project, config)
    assert len({len(part.columns) for part in partition.parts}) > 1
    for site, part in zip(SITES, partition.parts, strict=True):
        own = npz.read(project / site / "data.npz", site, labelled=False)
        np.testing.assert_array_equal(own.x.toarray(), np.asarray(data.x)[:, part.columns])
        np.testing.assert_array_equal(own.edges, part.edges)
        np.testing.assert_array_equal(own.public, part.masks)
        np.testing.assert_array_equal(own.y, data.y if site == SITES[0] else np.full_like(data.y, -1))


SUMMED = {"secure_sum": True, "batch": 0}


def refused_for(project: Path, run: str, config: Any, sites: tuple[str, ...]) -> str:
    """Why the first party refuses the run; "" if all parties take part."""
    fed = Flare(InProcess(project), sites, ledger=Ledger(), seed=0)
    try:
        fed.join(config.plain(), run, -1, vertical=True)
    except FedweaveError:
        notes = read_journal(journal_path(project / SITES[0], run)).notes
        return next(f"{note['code']} {note['why']}" for note in notes if note["note"] == "refused")
    return ""


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("fewer", [0, 1])
def test_fewer_parties_make_no_sum_whose_difference_is_one_partys(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewer: int, accepted: bool
) -> None:
    """Three share 60 nodes and two of them 70; a server that cheats names a place fewer. The difference of the sums
    would be the third party's representations, of almost all of its nodes."""
    config = experiment("glasu", algorithm_settings=SUMMED, **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    for site in SITES:
        rewrite(project / site / SITE_FILE, "measures", f"min_nodes = 1\nmin_difference = {2 - accepted}\nmeasures")
    assert not refused_for(project, "r1", config, SITES)
    assert not refused_for(project, "r2", config, SITES)
    name_fewer(monkeypatch, fewer)
    assert ("policy.min_difference" in refused_for(project, "r3", config, SITES[:2])) != accepted


def name_fewer(monkeypatch: pytest.MonkeyPatch, fewer: int) -> None:
    """Have the server leave out common places."""

    def cheating(replies: Replies, ask: Any) -> dict[str, Tree]:
        told = meet(replies, ask)
        return {site: one | {"common": one["common"][: len(one["common"]) - fewer]} for site, one in told.items()}

    monkeypatch.setattr(federation, "meet", cheating)


@pytest.mark.parametrize(("fewer", "code"), [(0, ""), (1, "forget.few"), (4, "forget.few"), (30, "")])
def test_a_server_that_names_few_places_less_learns_nothing_of_few(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewer: int, code: str
) -> None:
    """The same parties: the difference would be of these few nodes. After an edit of site.toml, too."""
    config = experiment("glasu", algorithm_settings=SUMMED, **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    for site in SITES:
        rewrite(project / site / SITE_FILE, "measures", "min_nodes = 5\nmeasures")
    assert not refused_for(project, "r1", config, SITES)
    rewrite(project / SITES[0] / SITE_FILE, 'normalize = "standard"', 'normalize = "none"')
    name_fewer(monkeypatch, fewer)
    assert refused_for(project, "r2", config, SITES).partition(" ")[0] == code


def met(project: Path) -> tuple[InProcess, dict[str, bytes]]:
    """The link of a join, and what each site said when asked to."""
    link, said = InProcess(project), {}
    for site in SITES:
        link.spoil[site] = lambda answer, site=site: (said.setdefault(site, answer.blob), answer)[1]
    Flare(link, SITES, ledger=Ledger()).join(experiment("glasu").plain(), "r1", -1, True)
    return link, said


def test_the_server_hears_no_id(project: Path, tmp_path: Path) -> None:
    tables(tmp_path / "data")
    _, said = met(bring(project, tmp_path / "data"))
    for site in SITES:
        ids = [line.split(",")[0] for line in (project / site / "data/nodes.csv").read_text().splitlines()[1:]]
        assert not any(node.encode() in said[site] for node in ids)
    assert len({(project / site / "ids.key").read_text() for site in SITES}) == 1
    assert not [*project.glob("server/**/ids.key"), *project.glob("admin/**/ids.key")]


def keys(project: Path) -> None:
    (project / "bank-b/ids.key").write_text(bytes(range(32)).hex())


def table_and_array(project: Path) -> None:
    write_site_file(project / "bank-b" / SITE_FILE, {"path": "data.npz"})  # of digits, whose classes have no names


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (keys, "ids.key"),
        (table_and_array, "bank-b: .*ids"),
        (lambda project: set_policy(project, 'deny = ["ids"]'), "bank-b: .*ids"),
        (lambda project: set_policy(project, 'deny = ["features"]'), "bank-b: .*`features`"),
    ],
)
def test_parties_that_do_not_fit_together_are_told_why(project: Path, tmp_path: Path, change: Any, said: str) -> None:
    tables(tmp_path / "data")
    change(bring(project, tmp_path / "data"))
    with pytest.raises(UserError, match=said):
        met(project)


def test_parties_agree_on_a_split_that_does_not_tell_who_has_a_label(project: Path, tmp_path: Path) -> None:
    config = experiment("glasu", rounds=2, algorithm_settings={"batch": 0}, **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    for site in SITES:
        (project / site / "ids.key").write_text(bytes(range(32)).hex())  # one split, with some test hits to see
        file = project / site / "data" / "nodes.csv"
        head, *lines = (line.split(",") for line in file.read_text().splitlines())
        at = head.index("split")
        for number, line in enumerate(lines):
            del line[at]
            if site == SITES[0] and number % 3 == 0:
                line[1] = ""  # the label
        del head[at]
        file.write_text("".join(",".join(line) + "\n" for line in (head, *lines)))
        rewrite(project / site / SITE_FILE, "normalize = .*", 'normalize = "standard"\nsplit = "hash"')
        rewrite(project / site / SITE_FILE, "measures", "min_nodes = 1\nmeasures")
    splits = {}
    for site in SITES:
        about, rules = read_site_file(project / site / SITE_FILE)
        own = read_party_data(about, project / site, "r1", SITES, site, rules.members).data
        splits[site] = dict(zip(own.ids, own.public.argmax(0).tolist(), strict=True))
        if site == SITES[0]:
            unlabeled = own.y < 0
            assert 15 < unlabeled.sum() < 35
            assert own.public[:, unlabeled].any(0).all()  # they are in it like the others
    shared = set.intersection(*map(set, splits.values()))
    assert len(shared) == 60
    assert {splits[SITES[0]][node] for node in shared} == {0, 1, 2}
    assert all(splits[site][node] == splits[SITES[0]][node] for site in SITES for node in shared)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 2)
    assert last.summary["local/accuracy"] > 0
    rewrite(project / SITES[1] / SITE_FILE, 'split = "hash"', 'split = "hash"\nshares = [0.5, 0.3, 0.2]')
    fed, algorithm, _ = joined(project, config, run="r2")
    with refusal("user.splits-differ", SITES[1]):
        list(train(algorithm, fed, 1))
    rewrite(project / SITES[1] / SITE_FILE, "shares = .*", "shares = [0.5, 0.4, 0.2]")
    with refusal("config.site", "shares"):
        read_site_file(project / SITES[1] / SITE_FILE)


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        ('["c0", "c1", "c2"]', False),
        ('["c1", "c0", "c2"]', True),
        ('["c0", "c1", "d2"]', True),
        (None, False),  # numbered classes cannot be compared
    ],
)
def test_classes_have_the_same_names_in_the_same_order_at_all_sites(
    project: Path, tmp_path: Path, labels: str | None, refused: bool
) -> None:
    config = experiment("glasu", **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    own = "classes = 3" if labels is None else f"labels = {labels}"
    rewrite(project / "bank-b/site.toml", "labels = .*", own)
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0)
    replies = fed.join(config.plain(), "r1", -1, vertical=True)
    if not refused:
        return check_names(replies)
    with refusal("user.names-differ", "bank-b", "bank-a"):
        check_names(replies)


def test_names_of_classes_can_be_kept_back(project: Path, tmp_path: Path) -> None:
    config = experiment("glasu", **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    rewrite(project / "bank-b/site.toml", "labels = .*", 'labels = ["c1", "c0", "c2"]')
    set_policy(project, 'deny = ["names"]')
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=0)
    check_names(fed.join(config.plain(), "r1", -1, vertical=True))


def test_a_party_without_labels_may_keep_back_what_only_those_with_labels_send(project: Path, tmp_path: Path) -> None:
    config = experiment("glasu", rounds=1, **tables(tmp_path / "data"))
    bring(project, tmp_path / "data")
    set_policy(project, 'deny = ["gradient"]')  # at bank-b; bank-a has the labels
    fed, algorithm, _ = joined(project, config)
    list(train(algorithm, fed, 1))
    set_policy(project, 'deny = ["gradient"]', "bank-a")
    with refusal("clients-missing", "bank-a:", "GLASU.pull"):
        joined(project, config, run="r2")


def test_what_is_no_blinded_id_is_not_counted_as_one(project: Path, tmp_path: Path) -> None:
    tables(tmp_path / "data")
    bring(project, tmp_path / "data")
    for change in (lambda ids: ids[:, :1], lambda ids: ids.double()):
        link = InProcess(project)
        for site in SITES:  # all of them, so that no majority refuses one

            def spoil(answer: Any, change: Any = change) -> Any:
                told = decode(answer.blob)
                return answer._replace(blob=encode(told | {"ids": change(told["ids"])}))

            link.spoil[site] = spoil
        with refusal("reply.blinded", "bank-a:"):
            Flare(link, SITES, ledger=Ledger()).join(experiment("glasu").plain(), "r1", -1, True)


@pytest.mark.parametrize("odd", ["fewer", "more"])
def test_a_party_that_blinds_other_than_what_it_was_sent_is_named(odd: str) -> None:
    """Places in a list that has lost a row would be those of other people, whom all parties would then train on."""
    lists = {site: torch.full((5, POINT), at, dtype=torch.uint8) for at, site in enumerate(SITES)}
    mark = torch.zeros(4, dtype=torch.uint8)

    def blind(turn: int, sent: Mapping[str, Tree]) -> Replies:
        ids = {site: own["ids"] for site, own in sent.items()}
        if turn == 2:
            ids["bank-b"] = ids["bank-b"][:4] if odd == "fewer" else ids["bank-b"].repeat(2, 1)
        return replies_of({site: {"ids": own, "signature": mark} for site, own in ids.items()})

    told = {site: {"features": 3, "ids": own, "signed": {"signature": mark}} for site, own in lists.items()}
    with pytest.raises(FedweaveError, match=f"bank-b: .* 5 ids, .* {4 if odd == 'fewer' else 10}"):
        meet(replies_of(told), blind)


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(re.sub(old, new, path.read_text()))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("data/nodes.csv", r"(?m)^(\w+),\w+,", r"\1,", "the graph has no split"),
        ("data/nodes.csv", "id,split", "id,role", "row 2: 'role' is"),
        ("site.toml", "labels = .*", "", "Set [data] classes or labels"),
        ("ids.key", "0", "x", "ids.key holds no secret"),
        ("ids.key", "(?s).+", "0" * 64, "weak key"),
    ],
)
def test_wrong_data_of_a_party_is_for_its_owner_alone(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, old: str, new: str, said: str
) -> None:
    tables(tmp_path / "data")
    bring(project, tmp_path / "data")
    (project / "bank-b/ids.key").write_text(bytes(range(32)).hex())
    rewrite(project / "bank-b" / file, old, new)
    with refusal("clients-missing", "bank-b:") as told:
        met(project)
    assert said not in str(told.value)
    assert any(said in record.getMessage() for record in caplog.records)


def ask(link: InProcess, kind: str, message: Tree, config: Any) -> Any:
    request = call_request(config, "GLASU.begin", 0 if kind == "step" else -1, kind)
    return link.members["bank-a"].answer(request, encode(message))


def test_a_server_cannot_ask_a_party_for_what_is_not_its_turn(project: Path, tmp_path: Path) -> None:
    tables(tmp_path / "data")
    bring(project, tmp_path / "data")
    config = experiment("glasu")
    stranger = torch.zeros(1, dtype=torch.int64)
    for kind, message in (
        ("step", {}),
        ("align", {"width": 3, "common": stranger}),
        ("align", {"width": 0, "common": stranger}),
        ("align", {"width": (1 << 17) + 1, "common": stranger}),
        ("align", {}),
    ):
        link = InProcess(project)
        assert not link.members["bank-a"].answer(join_request(config), b"").refusal
        assert ask(link, kind, message, config).refusal
    link, _ = met(project)
    assert ask(link, "align", {"width": 3, "common": stranger}, config).refusal  # once it has begun


def test_every_party_is_needed_and_nobody_holds_all(project: Path) -> None:
    cut_again(project, experiment("glasu"))
    link = InProcess(project)
    link.absent["bank-c"] = "cable cut"
    config = resolve(experiment("glasu", quorum=0.6).plain())
    with pytest.raises(ClientsMissing, match="bank-c: cable cut"):
        Server("r1", SITES, "")._join(config, project / "server", project / "server/runs/r1", link)
    for name in ("pooled_gnn", "centralized"):
        with refusal("user.pools"):
            experiment(name, quorum=0.6)


def test_the_split_of_named_parties_goes_to_the_site_of_that_name(tmp_path: Path) -> None:
    config = resolve(experiment("glasu", **tables(tmp_path / "data")).plain())
    assert split(config, SITES)[1].names == SITES
    assert split(config, ("x", "y", "z"))[1].names == SITES
    with refusal("user.sites", "bank-b", "bank-a", "--sites bank-a,bank-b,bank-c"):
        split(config, ("bank-b", "bank-a", "bank-c"))


def h(*shape: int, value: float = 1.0) -> bytes:
    return encode({"h": torch.full(shape, value)})


def test_a_step_that_changes_shapes_is_judged_by_the_other_sites() -> None:
    looks = Inspector(10_000)
    sent = {site: {"h": torch.ones(7, 2)} for site in "abc"}
    for count in (5, 4):
        good, refused = looks.accept("infer", INFO, sent, dict.fromkeys("ab", h(count, 2)))
        assert set(good) == {"a", "b"}
        assert not refused
    good, refused = looks.accept("infer", INFO, sent, {"a": h(3, 2), "b": h(3, 2), "c": h(3, 9)})
    assert set(good) == {"a", "b"}
    assert refused == {"c": "its reply was refused: h is [3, 9] float32, not [3, 2] float32"}


def test_one_reply_in_the_messages_shape_makes_it_the_rule() -> None:
    sent = {site: {"h": torch.ones(7, 2)} for site in "abc"}
    good, refused = Inspector(10_000).accept("train", INFO, sent, {"a": h(7, 2), "b": h(3, 9), "c": h(3, 9)})
    assert set(good) == {"a"}
    assert set(refused) == {"b", "c"}
    assert not Inspector(10_000).accept("train", INFO, sent, {"a": h(3, 9)})[0]
