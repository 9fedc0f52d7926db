"""Plug-ins that import modules by the names of earlier versions."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fedweave.core import plugins
from fedweave.core.moved import MOVED, find_moved_modules


def test_a_plug_in_of_an_earlier_version_still_loads(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from fedweave.metrics.judging import Judging\n\n\nclass Mine:\n    selected_by = Judging\n")
    with pytest.warns(DeprecationWarning, match=r"fedweave\.metrics\.selection"):
        mine = plugins.load(f"{file}:Mine")
    assert mine.selected_by is import_module("fedweave.metrics.selection").Judging


def test_every_new_name_is_a_module_and_no_old_one_is() -> None:
    find_moved_modules()
    source = Path(plugins.__file__).parents[1]
    for old, new in MOVED.items():
        assert import_module(new)
        assert not (source.parent / f"{old.replace('.', '/')}.py").exists()


def test_without_plug_ins_old_names_are_unknown() -> None:
    code = "import fedweave.metrics.judging"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in ended.stderr
