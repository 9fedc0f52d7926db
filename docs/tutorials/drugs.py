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
# A fifth of the molecules is kept at the server to judge by. The rest goes to six laboratories.

# %%
laboratories = fedweave.partition.GraphsIID(clients=6, global_test=0.2)
model = fedweave.models.GIN(hidden=32, layers=3, dropout=0.0, pool="sum").build(data.features, data.classes)


def trained(algorithm, molecules=data, seed=0):
    """All 40 rounds, of which the last is evaluated."""
    fed = fedweave.federation(molecules, laboratories.cut(data, seed), algorithm, seed=seed)
    return list(fedweave.train(algorithm, fed, rounds=40, eval_every=40))


# %% [markdown]
# First plain averaging, in which everybody gets the same model whatever it brought. Then FairGraphFL, with a budget of
# 100 EUR in every round.

# %%
paying = FairGraphFL(model, budget=100.0, local_steps=3, lr=0.01)
rounds = trained(paying)
for name, last in (("FedAvg", trained(FedAvg(model, local_steps=3, lr=0.01))[-1]), ("FairGraphFL", rounds[-1])):
    found, tests = last.summary["global/accuracy"], len(laboratories.cut(data, 0).test)
    words = (
        f"{round(found * tests)} of {tests} molecules right, standard error {(found * (1 - found) / tests) ** 0.5:.3f}"
    )
    print(f"{name}: accuracy {found:.3f} ({words})")
print(f"always the larger class: {rounds[-1].summary['global/majority']:.3f}")

# %% [markdown]
# With standard errors like these, one run does not tell which of the two is better. What each laboratory is owed:

# %%
value, diversity = (rounds[-1].of_clients(name, "server") for name in ("value", "diversity"))
paid = {member: sum(one.of_clients("payoff", "server").get(member, 0) for one in rounds) for member in value}
for member in value:
    words = f"value {value[member]:.3f}, has {diversity[member]:.0%} of all motifs, is owed {paid[member]:8.2f} EUR"
    print(f"{member}: {words}")

# %% [markdown]
# The laboratories drew from the same molecules, so that they bring about the same, and differences between their values
# are mostly chance. Is one that brings nonsense found out? Let the last one have all its labels wrong, in four cuts of
# the molecules, and compare every value with what it was when they were right.


# %%
def values(seed):
    """Every laboratory's value in the end: with all labels right, and with the last one's wrong."""
    y, wrong = data.y.copy(), laboratories.cut(data, seed).parts[-1].examples
    y[wrong] = 1 - y[wrong]
    runs = (trained(paying, molecules, seed)[-1] for molecules in (data, replace(data, y=y)))
    return [np.array([*last.of_clients("value", "server").values()]) for last in runs]


cuts = [values(seed) for seed in range(4)]
for seed, (before, now) in enumerate(cuts):
    moved = now - before
    print(
        f"seed {seed}: with wrong labels {before[-1]:.3f} before, {now[-1]:.3f} now ({moved[-1]:+.3f}); "
        f"honest ones {now[:-1].min():.3f} to {now[:-1].max():.3f} ({moved[:-1].min():+.3f} to {moved[:-1].max():+.3f})"
    )
lowest, most = sum(now.argmin() == 5 for _, now in cuts), sum((now - before).argmin() == 5 for before, now in cuts)
print(f"of {len(cuts)} cuts, the laboratory with wrong labels is worth least in {lowest}, and falls most in {most}")
print(f"it changes by {np.mean([now[-1] - before[-1] for before, now in cuts]):+.3f} on average")
honest = min(min(before.min(), now[:-1].min()) for before, now in cuts)
print(f"its value was up to {max(now[-1] for _, now in cuts):.3f}; that of honest ones down to {honest:.3f}")

# %% [markdown]
# A single run does not settle it: values always sum to 1, so that honest ones fall too, and an honest one may fall
# most. What tells is repetition. The lines above count it for four cuts of the same molecules, and on average over them
# the laboratory with wrong labels loses. That is some evidence that labels which are *all* wrong cost value; it is none
# about milder faults. And no value at which to exclude anybody follows as long as an honest laboratory can come as low
# as one with wrong labels, which the last line compares. Before a value decides over money, run several seeds, and look
# at changes against those of members known to be honest.
#
# The command line makes statements of account from a run, a line for each round and member, sealed with hashes:
# `fedweave statement RUN`. What members tell of their molecules, and what dishonest ones were paid in a test:
# [FairGraphFL](../fairgraphfl.md).
