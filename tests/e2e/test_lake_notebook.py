"""`examples/lake.ipynb`, executed as a newcomer does it: from a topic into a table, and back into a topic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from deltalake import DeltaTable
from nbclient import NotebookClient

from brokerset_rig.local_set import processes_of
from brokerset_rig.spark_session import missing_java

NOTEBOOK = Path(__file__).parents[2] / "examples" / "lake.ipynb"


def text_of(cell: Any) -> str:
    """What a cell has printed."""
    return "".join(each.get("text", "") for each in cell.outputs)


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages, which this test is not about
def test_the_notebook_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every order is in the table once, the group that is behind is seen in `brokerset status`, the counts of the
    second topic are those of the table (the page's own asserts), and no process is left."""
    if problem := missing_java():
        pytest.skip(problem)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )  # it lives half a minute
    page = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]  # it has no types
    client = NotebookClient(page, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    folder = tmp_path / "lake-demo"
    try:
        client.execute()
    finally:
        if (folder / "set").exists():
            command = [sys.executable, "-m", "brokerset_cli.main", "down", "--data", str(folder / "set")]
            subprocess.run(command, check=True, capture_output=True, timeout=60)

    lags = [
        [int(lag) for lag in re.findall(r"^lake +orders +4 +(\d+)", text_of(cell), re.M)]
        for cell in page.cells
        if cell.cell_type == "code" and "status --groups" in cell.source
    ]
    assert lags == [[0], [100], [0]]
    rows = DeltaTable(str(folder / "orders")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(400))
    assert len({(row["brokerName"], row["queueId"], row["offset"]) for row in rows}) == 400
    assert not (folder / "set").exists()
    assert processes_of(str(tmp_path)) == []
