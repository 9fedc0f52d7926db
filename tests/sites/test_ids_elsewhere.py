"""Ids and labels of a site's data: in no log, no temporary file, and no message of an error that leaves the site."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, resolve
from fedweave.sites.flare.sitefile import SITE_FILE, write_site_file
from tests.sites.projects import SITES, experiment, joined
from tests.sites.test_refused_rounds import job

SECRET = "IBAN-7f3a"  # each id begins with it
LABELS = np.random.default_rng(0).integers(0, 2, 30)  # of each site's nodes, in their order


def with_names(project: Path) -> Config:
    """Each site's data as tables whose ids name someone."""
    draw = np.random.default_rng(1)
    for site in SITES:
        (own := project / site / "own").mkdir()
        rows, ends = ["id,age,label,split"], ["source,target"]
        for at, label in enumerate(LABELS):
            split = ("train", "val", "test")[at % 3]
            rows.append(f"{SECRET}-{site}-{at:02},{draw.normal() + label:.3f},{label},{split}")
            ends.append(f"{SECRET}-{site}-{at:02},{SECRET}-{site}-{(at + 2) % 30:02}")
        (own / "nodes.csv").write_text("\n".join(rows) + "\n")
        (own / "edges.csv").write_text("\n".join(ends) + "\n")
        write_site_file(project / site / SITE_FILE, {"path": "own", "classes": 2}, min_nodes=1)
    (project / "server/test.npz").unlink(missing_ok=True)
    return resolve({**experiment(rounds=1).plain(), "data": {"name": "digits"}, "model": {"name": "gcn", "hidden": 4}})


def elsewhere(root: Path, project: Path) -> list[Path]:
    """All files below `root` that are in no site's own folder."""
    own = [project / site for site in SITES]
    return [path for path in root.rglob("*") if path.is_file() and not any(one in path.parents for one in own)]


def test_ids_and_labels_are_in_no_log_and_no_file_outside_a_sites_own_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """After a run between sites: the server's folder, the temporary folder, all logs at the finest level, and both
    output streams."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    config = with_names(project)
    with caplog.at_level(logging.DEBUG):
        job(project, tmp_path / "out", config)
    shown = capfd.readouterr()
    logs = [path for path in project.rglob("*.log") if path.is_file()]
    text = caplog.text + shown.out + shown.err + "".join(path.read_text() for path in logs)
    assert "fedweave" in text
    assert SECRET not in text
    files = elsewhere(tmp_path, project)
    assert len(files) > 5
    listed = [LABELS.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8, np.float32)]
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content, path
        assert not any(labels in content for labels in listed), path
    assert SECRET in (project / SITES[0] / "own/nodes.csv").read_text()


def test_the_refusal_of_a_table_that_the_server_gets_has_no_id(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The site's own log names the row for its owner; what the server gets of it does not."""
    config = with_names(project)
    path = project / "bank-b" / "own/edges.csv"
    path.write_text(path.read_text() + f"{SECRET}-bank-b-00,{SECRET}-unknown\n")
    with caplog.at_level(logging.DEBUG), pytest.raises(FedweaveError) as refused:
        joined(project, config)
    assert "bank-b" in str(refused.value)
    assert SECRET not in str(refused.value)
    server = [record.getMessage() for record in caplog.records if record.name.startswith("fedweave.server")]
    assert not any(SECRET in line for line in server)
