# %% [markdown]
# # Banks: a loan decision that treats two groups alike (F²GNN)
#
# Six banks want to know who will pay back a loan. Customers who resemble each other are joined, so that a bank holds
# a graph. The past was not fair: customers of group 1 paid back more often, and they mostly know each other. A model
# that learns from this will approve group 1 more often than it needs to. Nobody hands over customers; they train
# together.
#
# The customers are generated, so that nothing has to be downloaded. With your own, see [Your own
# data](../data-format.md).

# %%
import fedweave
from fedweave.algorithms import F2GNN, FedAvg

data = fedweave.datasets.load(
    "synthetic",
    nodes=3000,
    classes=2,  # 0: did not pay back, 1: did
    features=16,
    degree=8,
    homophily=0.7,
    signal=1.5,
    sensitive=True,  # two groups; the group is never an input of the model
    sens_label_correlation=0.35,
    sens_homophily=0.8,
    sens_feature_shift=1.0,
)
paid = [data.y[data.sensitive == group].mean() for group in (0, 1)]
print(f"{data.nodes:,} customers; of group 0 {paid[0]:.0%} paid back, of group 1 {paid[1]:.0%}")

# %% [markdown]
# Each bank serves one community of the graph. It knows the outcome of a fifth of its customers to learn from, and of
# another fifth to choose by; the rest are those whom the model is judged on.

# %%
cut = fedweave.partition.Louvain(clients=6, train=0.2, val=0.2, test=0.6).cut(data, seed=0)
model = fedweave.models.GCN(hidden=32).build(data.features, data.classes)


def trained(algorithm):
    """The federation and the last of 40 rounds."""
    fed = fedweave.federation(data, cut, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds=40, eval_every=40)
    return fed, last


# %% [markdown]
# First plain federated averaging. Two gaps matter. **Statistical parity** (ΔSP) is the difference between the groups'
# approval rates. **Equal opportunity** (ΔEO) is the same among those who do pay back: good customers refused because
# of where they stand.

# %%
_, plain = trained(FedAvg(model, local_steps=3, lr=0.01))


def show(name, last):
    """Accuracy and both gaps, each beside what a model that ignores the groups would show by chance."""
    found = {key: last.summary[f"groups/global/{key}"] for key in ("sp", "sp_floor", "eo", "eo_floor")}
    gaps = "ΔSP {sp:.3f} (chance {sp_floor:.3f}), ΔEO {eo:.3f} (chance {eo_floor:.3f})".format(**found)
    print(f"{name:7} accuracy {last.summary['global/accuracy']:.3f}, {gaps}")


show("FedAvg", plain)

# %% [markdown]
# Both gaps are far above chance. F²GNN changes both sides: banks pay a penalty (`alpha`) for their gaps while they
# train, and the server lets those count more whose gaps are small and whose graph joins the groups evenly.

# %%
fed, fair = trained(F2GNN(model, alpha=1.0, local_steps=3, lr=0.01))
show("FedAvg", plain)
show("F²GNN", fair)

# %% [markdown]
# What does it cost? Above you see accuracy before and after: part of what the plain model knew *was* the group, so
# that some accuracy goes with the gap. How much is right to pay is for people to decide, and `alpha` sets it:

# %%
_, between = trained(F2GNN(model, alpha=0.3, local_steps=3, lr=0.01))
show("between", between)

# %% [markdown]
# And what left the banks? No customer's row; but some numbers about their customers as a group. The ledger lists each
# with what its receiver learns, and a step cannot send what it does not declare. Keys that begin with `own` are scores,
# sent when the models are judged. They reveal most: how many customers of each group have which outcome and which
# prediction.

# %%
rows = fed.ledger.table().to_pylist()
told = dict.fromkeys((row["key"].split("/")[0], row["reveals"]) for row in rows if row["direction"] == "up")
for key, reveals in told:
    if reveals:
        print(f"{key:8} {reveals}")

# %% [markdown]
# Where to go from here: [F²GNN's settings and results on real data](../f2gnn.md), fairness [in plain
# words](../concepts.md), and [six lenders on real credit data](../examples/credit.md).
