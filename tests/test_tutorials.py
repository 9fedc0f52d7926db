"""Tutorials run as notebooks, as who downloads them runs them."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shown import ROOT

FILES = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel, of the extra dev")
pytest.importorskip("ipykernel", reason="needs ipykernel, of the extra dev")


def notebook(file: Path) -> str:
    """Its cells as a notebook, without outputs."""
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "docs" / "_site" / "tutorials.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return str(module.notebook(module.cells(file.read_text(encoding="utf-8"))))


def executed(document: str, folder: Path) -> Any:
    """The notebook with its outputs, run in the folder by the interpreter of the tests.

    Raises:
        CellExecutionError: a cell failed.
    """
    import nbformat
    from jupyter_client import KernelManager
    from jupyter_client.kernelspec import KernelSpec

    manager = KernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python")
    node = nbformat.reads(document, as_version=4)
    client = nbclient.NotebookClient(node, km=manager, timeout=600, resources={"metadata": {"path": str(folder)}})
    return client.execute()


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_tutorial_runs_as_a_notebook(file: Path, tmp_path: Path) -> None:
    cells = [cell for cell in executed(notebook(file), tmp_path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert not [text for one in shown if re.search(r" at 0x[0-9a-f]+>", text := one["text/plain"]) or len(text) > 2000]
    if file.stem == "notebook":
        assert sum("text/html" in one for one in shown) >= 7  # data, cut, algorithm, ledger, run, two figures
        assert sum("<svg" in one.get("text/html", "") for one in shown) == 2
