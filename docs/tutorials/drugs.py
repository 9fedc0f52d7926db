# %% [markdown]
# # Drug screening: who contributes, and who is owed what (FairGraphFL)
#
# Six laboratories screen molecules. Each has tested some, and a common model would know more than any of theirs. But
# why should a laboratory with rare, well measured molecules share as much as one that brings little? FairGraphFL
# values every member by how well its update fits the joint one and by how many of all known *motifs* (rings and
# bonds) its molecules have. Who brings more gets more of the joint model, and more of a budget.
#
# The molecules are drawn here: chains and rings of carbon (C), nitrogen (N) and oxygen (O). "Active" are those with a
# ring of five that holds a nitrogen. Your own molecules come the same way, as three tables.

# %%
from dataclasses import replace

import numpy as np
import pyarrow as pa

import fedweave
from fedweave.algorithms import FairGraphFL, FedAvg

rng = np.random.default_rng(0)
graphs, nodes, edges = [], [], []
for number in range(360):
    ring, tail = int(rng.integers(4, 7)), int(rng.integers(1, 5))
    atoms = rng.choice(["C", "N", "O"], ring + tail, p=[0.7, 0.2, 0.1])
    active = ring == 5 and "N" in atoms[:ring]
    names = [f"{number}-{place}" for place in range(ring + tail)]
    graphs.append({"id": str(number), "label": "active" if active else "inactive"})
    nodes += [{"id": name, "graph": str(number), "label": str(atom)} for name, atom in zip(names, atoms, strict=True)]
    pairs = [(place, (place + 1) % ring) for place in range(ring)]
    pairs += [(place - 1 if place > ring else 0, place) for place in range(ring, ring + tail)]
    edges += [{"source": names[a], "target": names[b]} for a, b in pairs]

data = fedweave.datasets.from_graph_frames(*map(pa.Table.from_pylist, (graphs, nodes, edges)), name="molecules")
print(
    f"{data.examples} molecules, {data.nodes:,} atoms; {np.mean(data.y == data.labels.index('active')):.0%} are active"
)

# %% [markdown]
# A fifth of the molecules, 72, is kept at the server to judge by. The rest goes to six laboratories.

# %%
cut = fedweave.partition.GraphsIID(clients=6, global_test=0.2).cut(data, seed=0)
model = fedweave.models.GIN(hidden=32, layers=3, dropout=0.0, pool="sum").build(data.features, data.classes)


def trained(algorithm, molecules=data):
    """All 40 rounds, of which the last is evaluated."""
    fed = fedweave.federation(molecules, cut, algorithm, seed=0)
    return list(fedweave.train(algorithm, fed, rounds=40, eval_every=40))


# %% [markdown]
# First plain averaging, in which everybody gets the same model whatever it brought.

# %%
found = trained(FedAvg(model, local_steps=3, lr=0.01))[-1].summary
print(f"FedAvg: accuracy {found['global/accuracy']:.3f}, always the larger class {found['global/majority']:.3f}")

# %% [markdown]
# Now FairGraphFL, with a budget of 100 EUR in every round.

# %%
rounds = trained(FairGraphFL(model, budget=100.0, local_steps=3, lr=0.01))
last = rounds[-1]
print(f"FairGraphFL: accuracy {last.summary['global/accuracy']:.3f}")
value, diversity = last.of_clients("value", "server"), last.of_clients("diversity", "server")
paid = {member: sum(one.of_clients("payoff", "server").get(member, 0) for one in rounds) for member in value}
for member in value:
    words = f"value {value[member]:.3f}, has {diversity[member]:.0%} of all motifs, is owed {paid[member]:8.2f} EUR"
    print(f"{member}: {words}")

# %% [markdown]
# The two accuracies are 56 and 58 right of 72 molecules. A difference of two molecules tells nothing: each number has a
# standard error of about 0.05, and with seeds 1, 2 and 3 in place of 0, for the cut and for training, FairGraphFL was
# ahead by two molecules, by none, and behind by one. Neither is far above always saying "inactive", 54 of 72.
#
# The laboratories drew from the same molecules, so that they bring about the same, and differences between their values
# are mostly chance. Is one that brings nonsense found out? Let the last one have all its labels wrong.

# %%
y = data.y.copy()
wrong = cut.parts[-1].examples
y[wrong] = 1 - y[wrong]
cheated = trained(FairGraphFL(model, budget=100.0, local_steps=3, lr=0.01), replace(data, y=y))
for member, after in cheated[-1].of_clients("value", "server").items():
    print(f"{member}: value {value[member]:.3f} before, {after:.3f} now ({after - value[member]:+.3f})")

# %% [markdown]
# This one run does not settle it. The last laboratory is lowest and falls most, but it was second lowest before, and
# honest ones fall too, since values always sum to 1. What tells is repetition: with seeds 1, 2 and 3 it again ended
# lowest and fell most, by 0.060, 0.027 and 0.057, where no honest one fell by more than 0.018 in any of the four. That
# is evidence, from four cuts of the same molecules, that labels which are *all* wrong are found out; it is none about
# milder faults. No value at which to exclude anybody follows: with seed 2 the last laboratory was lowest, with 0.112,
# when its labels were still right. Before a value decides over money, run several seeds, and look at changes against
# those of members known to be honest.
#
# The command line makes statements of account from a run, a line for each round and member, sealed with hashes:
# `fedweave statement RUN`. What members tell of their molecules, and what dishonest ones were paid in a test:
# [FairGraphFL](../fairgraphfl.md).
