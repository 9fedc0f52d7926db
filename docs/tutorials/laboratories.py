# %% [markdown]
# # Laboratories: how active is a molecule? (FedAvg on molecules)
#
# Four laboratories look for a drug. Each has made some hundred molecules and measured how active they are. A model that
# predicts the activity of a molecule before anybody makes it saves months. More molecules make a better model, but no
# laboratory shows its molecules to another one.
#
# The 1,017 molecules here are real. They are of one publication in ChEMBL (document CHEMBL2321810), and they come with
# RDKit: `pip install 'fedweave[molecules]'`. Activity is a logarithm: 7 is ten times as active as 6.

# %%
import csv
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from rdkit import Chem, RDConfig
from rdkit.Chem import Draw

import fedweave

source = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
smiles = [line.split() for line in (source / "CHEMBL2321810.smi").read_text().splitlines()]
activity = {row["Name"]: row["Act"] for row in csv.DictReader((source / "CHEMBL2321810_act.csv").open())}
lines = ["id,smiles,activity", *(f"{name},{text},{activity[name]}" for text, name in smiles)]

folder = Path(tempfile.mkdtemp())
(folder / "graphs.csv").write_text("\n".join(lines) + "\n")
print(*lines[:4], sep="\n")

# %% [markdown]
# A table with the columns `id`, `smiles` and the number to predict is all that you need for molecules of your own.
#
# Laboratories work on chemical series. fedweave cuts by **scaffold**, the skeleton of rings of a molecule: all
# molecules with one scaffold are at one laboratory. Inside each laboratory, it tests on scaffolds that it has not
# trained on. So we ask the question that matters: how good is the model on a new series?

# %%
experiment = {
    "seed": 0,
    "rounds": 30,
    "eval_every": 5,
    "data": {
        "name": "graphs",
        "path": str(folder),
        "target": "number",
        "targets": ["activity"],
        "target_normalize": "all",
    },
    "partition": {"name": "scaffold", "clients": 4, "split": "scaffold"},
    "model": {"name": "gin", "hidden": 64, "layers": 3, "dropout": 0.0},
    "algorithm": {"lr": 0.003, "local_steps": 7, "parts": [{"name": "graph_cross_entropy", "batch": 32}]},
    "evaluation": {"intervals": 0.9},
}
data = fedweave.datasets.load("graphs", str(folder), target="number", targets=("activity",))
laboratories = fedweave.partition.Scaffolds(clients=4, split="scaffold").cut(data, seed=0).parts
for number, laboratory in enumerate(laboratories):
    own = data.y[laboratory.examples, 0]
    print(f"laboratory {number}: {len(own)} molecules, mean activity {own.mean():.2f}")

# %% [markdown]
# Two molecules of each laboratory, a row each:

# %%
shown = [smiles[at][0] for laboratory in laboratories for at in laboratory.examples[:2]]
Draw.MolsToGridImage([Chem.MolFromSmiles(text) for text in shown], molsPerRow=2, subImgSize=(220, 130), useSVG=True)

# %% [markdown]
# Now three trainings of the same network: each laboratory alone, all together by federated averaging, and, to know what
# is at stake, all molecules in one place. A step is of 32 molecules, and a round is about one pass over a laboratory's
# molecules. In one place a round has four times as many steps, so that every molecule counts as often.


# %%
def trained(name, steps):
    """The run of an algorithm, without a bar."""
    algorithm = experiment["algorithm"] | {"name": name, "local_steps": steps}
    return fedweave.run(experiment | {"algorithm": algorithm}, out=folder / name, overwrite=True, progress=False)


runs = {name: trained(name, steps) for name, steps in {"local": 7, "fedavg": 7, "centralized": 28}.items()}
for name, run in runs.items():
    metrics = run.summary["metrics"]
    print(f"{name:12} RMSE {metrics['local/rmse']:.2f}, order {metrics['local/spearman']:.2f}")
print(f"{'constant':12} RMSE {metrics['local/rmse_of_mean']:.2f}, always predicting a laboratory's mean activity")

# %% [markdown]
# RMSE is the typical error, in units of activity, and lower is better. The order (Spearman's correlation) is 1 if the
# model ranks the molecules of a laboratory as the measurements do, and 0 by chance: it says whether you would make the
# right molecule first.

# %%
comparison = fedweave.compare(runs["fedavg"], runs["local"], runs["centralized"])
comparison.figures["curves"]

# %% [markdown]
# A mean hides who gains. Does every laboratory?

# %%
rows = comparison.clients.to_pylist()
for client in dict.fromkeys(row["client"] for row in rows):
    own = {row["algorithm"]: row["rmse"] for row in rows if row["client"] == client}
    print(client, *(f"{name} {value:.2f}" for name, value in own.items()), sep="  ")

# %% [markdown]
# One run with one seed is an anecdote. [The table with several seeds](../findings/molecules.md) says on which sets of
# molecules joining is better than working alone, and where no difference shows.
#
# How far can you trust one prediction? We asked for **intervals** that hold nine of ten measurements. Their width comes
# from the errors on validation molecules of all laboratories. These, too, are of other scaffolds than in training, but
# of more common ones than the test molecules.

# %%
metrics = runs["fedavg"].summary["metrics"]
print(f"± {metrics['intervals/width'] / 2:.2f} holds {metrics['intervals/coverage']:.0%} of test molecules,")
print(f"and {metrics['intervals/worst_coverage']:.0%} in the laboratory with the fewest")

# %% [markdown]
# They hold fewer than nine of ten, and `fedweave run` says so in a note. The promise of such intervals is for molecules
# that resemble those of validation. For a new series, measure a few molecules first and see how far off the model is.

# %% [markdown]
# What left the laboratories? No molecule, and no activity of one. The ledger lists everything that did, with what its
# receiver learns. `target_normalize = "all"` costs the lines `n`, `sum` and `squares`, from which mean and deviation of
# all activities follow. With `"own"` these stay at home, and [the model can be much worse where means
# differ](../quantities.md#the-scale-of-a-number).

# %%
ledger = pq.read_table(folder / "fedavg" / "ledger.parquet").to_pylist()
told = {(row["key"].split("/")[0], row["reveals"]) for row in ledger if row["direction"] == "up" and row["reveals"]}
print("\n".join(f"{key:8} {reveals[:100]}" for key, reveals in sorted(told)))

# %% [markdown]
# Where to go from here: [molecules](../molecules.md) of your own, [numbers and several labels](../quantities.md), and a
# secure sum, in which the server sees no laboratory's model: [what leaves, and how to make it less](../what-leaves.md).
