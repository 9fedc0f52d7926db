"""A site's folder that forgets what has left it: deleted, put back as it was, or with lines taken out."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')


from fedweave.core.ledger import Ledger
from fedweave.errors import ClientsMissing
from fedweave.sites.flare.audit import audit, caps
from fedweave.sites.flare.chain import HEADS, Heads
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.journal import journal_path, read_journal
from tests import commands
from tests.refusals import check_facts
from tests.security.cheating import SITE, agreed, set_policy
from tests.sites.projects import SITES, InProcess

NOISY = agreed("dp_fedavg", rounds=1, algorithm_settings={"clip": 0.5, "sigma": 8.0})


def run(project: Path, name: str, heads: Path | None = None) -> Flare:
    """A run of one round at all sites; what the server knows of accounts is in a file."""
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), heads=Heads(heads or project / "server" / HEADS))
    told = fed.join(NOISY.plain(), name, -1)
    fed.begin(1)
    algorithm = NOISY.algorithm.make(NOISY.model.make().build(told[SITE]["features"], 3))
    fed.map(algorithm.train, {"w": algorithm.init(fed)["w"]})
    return fed


def accepted(refusal: Any) -> str:
    """The rule with which the refusal says that the owner can accept the loss."""
    found = re.search(r"policy\.(lost = \[.*?\])", str(refusal))
    assert found
    return found[1]


def deleted(project: Path) -> None:
    shutil.rmtree(project / SITE / "ledgers")


def restored(project: Path) -> None:
    """As the folder was after the first run."""
    journal_path(project / SITE, "r2").unlink()


@pytest.mark.often("restored")
@pytest.mark.parametrize("forget", [deleted, restored])
def test_a_folder_that_forgot_what_has_left_is_found_until_its_owner_says_so(project: Path, forget: Any) -> None:
    for name in ("r1", "r2"):
        run(project, name)
    forget(project)
    with pytest.raises(ClientsMissing, match=rf"{SITE}: .*policy\.lost: entry 4") as refused:
        run(project, "r3")
    set_policy(project, accepted(refused.value))
    run(project, "r4")
    run(project, "r5")  # entries are counted on from there
    assert [link.head.number for link in read_journal(journal_path(project / SITE, "r5")).links] == [7, 8]


@pytest.mark.parametrize("further", [False, True])
def test_a_copy_of_a_folder_on_another_host_takes_part_in_nothing(project: Path, tmp_path: Path, further: bool) -> None:
    """It is as the folder was after the first run; or it went on by itself, with a server of its own that knew no
    better, and has as many entries as the folder on the first host."""
    run(project, "r1")
    elsewhere = Path(shutil.copytree(project, tmp_path / "elsewhere"))
    run(project, "r2")
    if further:
        run(elsewhere, "other")
    shutil.rmtree(project / SITE)
    shutil.copytree(elsewhere / SITE, project / SITE)
    with pytest.raises(ClientsMissing, match=rf"{SITE}: .*policy\.lost: entry 4"):
        run(project, "r3")


def test_what_is_unknown_after_a_loss_is_said_wherever_costs_are(project: Path) -> None:
    """The numbers are of what is left alone: who reads them must not take them for all."""
    site = project / SITE
    for name in ("r1", "r2"):
        run(project, name)
    before = audit(site)
    assert not before.lost
    assert "lost" not in " ".join(caps(before))
    deleted(project)
    with pytest.raises(ClientsMissing) as refused:
        run(project, "r3")
    set_policy(project, accepted(refused.value))
    run(project, "r4")
    after = audit(site)
    assert after.spent.bytes < before.spent.bytes
    check_facts(after.lost, "4 entries", "4")
    for words in (["audit", site], ["ledger", site], ["compliance", site, "-o", project / "report.html"]):
        told = commands.run(*[str(word) for word in words])
        shown = (project / "report.html").read_text() if words[0] == "compliance" else told
        check_facts(shown, "ccounts were lost")


def test_other_members_know_it_where_the_server_forgot_it_too(project: Path) -> None:
    """What they heard when they last joined."""
    for name in ("r1", "r2"):
        run(project, name)
    deleted(project)
    with pytest.raises(ClientsMissing, match=rf"{SITE}: .*ends? at entry 1, and bank-[ac] knows of 2") as refused:
        run(project, "r3", project / "new.json")
    set_policy(project, accepted(refused.value))
    run(project, "r4", project / "new.json")


@pytest.mark.often("out", "other")
@pytest.mark.parametrize("spoil", ["out", "other", "twice"])
def test_an_entry_that_is_taken_out_or_changed_is_missed(project: Path, spoil: str) -> None:
    """Without anybody else: the next one has the hash of the line as it was."""
    for name in ("r1", "r2"):
        run(project, name)
    path = journal_path(project / SITE, "r1")
    lines = path.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if '"FedAvg.train"' in line)
    changed = json.loads(lines[at]) | {"keys": []}
    lines[at : at + 1] = {"out": [], "other": [json.dumps(changed)], "twice": [lines[at], json.dumps(changed)]}[spoil]
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ClientsMissing, match=r"policy\.lost: (entry 2|.* hold two entries 2)"):
        run(project, "r3", project / "new.json")
