"""Accounts of three banks, of which few are fraudulent."""

from pathlib import Path

import numpy as np

ACCOUNTS, BANKS = 300, ("a", "b", "c")


def accounts(root: Path, share: float) -> Path:
    """An experiment on `ACCOUNTS` nodes of which a `share` are of class 1, spread evenly over banks and splits."""
    rng = np.random.default_rng(0)
    fraud = np.zeros(ACCOUNTS, int)
    fraud[: round(share * ACCOUNTS)] = 1
    x = rng.normal(size=(ACCOUNTS, 2)) + 1.5 * fraud[:, None]
    splits = ("train", "train", "val", "test")
    rows = [
        f"n{i},{BANKS[i % 3]},{splits[(i // 3) % 4]},{fraud[i]},{x[i, 0]:.4f},{x[i, 1]:.4f}" for i in range(ACCOUNTS)
    ]
    data = root / "data"
    data.mkdir(parents=True)
    (data / "nodes.csv").write_text("\n".join(["id,bank,split,label,x0,x1", *rows]))
    edges = [f"n{i},n{i + 3}" for i in range(ACCOUNTS - 3)]
    (data / "edges.csv").write_text("\n".join(["source,target", *edges]))
    experiment = root / "e.toml"
    experiment.write_text(
        f"""seed = 0
rounds = 3
[data]
name = "folder"
path = "{data}"
owner = "bank"
[partition]
name = "column"
use_dataset_split = true
[model]
name = "mlp"
hidden = 4
"""
    )
    return experiment
