"""The notebooks run from top to bottom, and are kept as they should be: small, without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples" / "notebooks").glob("*.ipynb"))
# What fits on a screen beside the text
MAX_LINES, MAX_WIDTH = 40, 120


@pytest.mark.slow  # a process each, and imports
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_quick_mode(path, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYRO_FNBG_QUICK", "1")
    monkeypatch.delenv("PYRO_FNBG_DATA", raising=False)  # nothing may be needed that is not here
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setenv("TQDM_DISABLE", "1")  # as where the documentation is built
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 300, "kernel_name": "python3"}
    NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}, **options).execute()
    told = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert told
    said = [output["text"] for output in told if output.get("name") == "stderr"]
    assert not [text for text in said if "Warning" in text]
    # A page shows widgets by scripts from elsewhere only
    assert not [mime for output in told for mime in output.get("data", {}) if "widget" in mime]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small_and_has_no_outputs(path):
    notebook = json.loads(path.read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in notebook["cells"]:
        lines = "".join(cell["source"]).splitlines()
        assert len(lines) <= MAX_LINES, lines[0]
        assert not [line for line in lines if len(line) > MAX_WIDTH]
