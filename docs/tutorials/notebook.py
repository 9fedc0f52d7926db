# %% [markdown]
# # fedweave in a notebook
#
# Data, cuts, models, algorithms, federations and runs show themselves: end a cell with their name. The data of this
# notebook, handwritten digits as a graph of similar ones, comes with fedweave.

# %%
import fedweave

data = fedweave.datasets.load("digits")
data

# %% [markdown]
# Five clients, each with mostly some of the ten digits:

# %%
cut = fedweave.partition.Dirichlet(clients=5, alpha=0.3).cut(data, seed=0)
cut

# %% [markdown]
# A model and an algorithm. A wrong name or value is refused at once, with the nearest name: `local_stpes` would be.

# %%
model = fedweave.models.GCN(hidden=32).build(data.features, data.classes)
algorithm = fedweave.algorithms.FedProx(model, mu=0.1, local_steps=3)
algorithm

# %% [markdown]
# A federation trains round by round; `out` keeps the run as the command line does.

# %%
fed = fedweave.federation(data, cut, algorithm, seed=0)
for step in fedweave.train(algorithm, fed, rounds=15, eval_every=5, out="runs/notebook-fedprox", overwrite=True):
    if step.evaluated:
        print(step)

# %% [markdown]
# What did clients send? The ledger knows every message.

# %%
fed.ledger

# %% [markdown]
# The run as it was saved: metrics as a table, and what the last layer reads of each example.

# %%
run = fedweave.load_run("runs/notebook-fedprox")
run

# %%
run.embeddings().select(["client", "node", "true", "e_0", "e_1"]).slice(0, 3).to_pylist()

# %% [markdown]
# Is joining worth it? The same clients alone, from the same start:

# %%
alone = fedweave.algorithms.Local(model, local_steps=3)
list(
    fedweave.train(
        alone, fedweave.federation(data, cut, alone, seed=0), rounds=15, out="runs/notebook-local", overwrite=True
    )
)
compared = fedweave.compare("runs/notebook-local", "runs/notebook-fedprox")
print(*compared.sentences, sep="\n")

# %% [markdown]
# Figures of the report, one by one:

# %%
page = fedweave.report("runs/notebook-local", "runs/notebook-fedprox", embeddings="pca")
page.figures["bytes"]

# %%
page.figures["embeddings"]

# %% [markdown]
# `page.save("report.html")` writes the whole page. Next: [compare algorithms](../comparing.md) with several seeds, or
# [your own method in a paper](paper.md).
