# %% [markdown]
# # Hospitals: the same patients, different columns (GLASU)
#
# Three clinics treat the same patients. Each has measured something else, and none may pass its columns on. GLASU
# gives each clinic a model of its own; after some layers the clinics' *representations* of a few patients are
# averaged, so that every model sees a little of what the others know.
#
# Handwritten digits stand in for the patients: 64 gray values of a small scan, of which the first clinic holds the
# top rows, the second the middle, the third the bottom. "Diagnoses" are the ten digits; similar scans are joined.
# Nothing is downloaded.

# %%
import fedweave
from fedweave.algorithms import GLASU, PooledGNN, Standalone
from fedweave.partition.client_data import pool_clients

data = fedweave.datasets.load("digits")
cut = fedweave.partition.Vertical(clients=3, edges=0.8, train=0.1, val=0.2, test=0.7).cut(data, seed=0)
for number, part in enumerate(cut.parts):
    links = part.edges.shape[1] // 2
    print(f"clinic {number}: {len(part.nodes):,} patients, {len(part.columns)} columns, {links:,} links")

# %% [markdown]
# A model of two convolutions for each clinic. Its width is that of the widest clinic.

# %%
kind = fedweave.models.GCNII(hidden=32, layers=2, dropout=0.0, alpha=0.3)
model = kind.build(fedweave.width(data, cut), data.classes)
training = {"batch": 48, "fan_out": 3, "optimizer": "sgd", "lr": 1.0}


def trained(algorithm, clinics=cut, rounds=60):
    """The federation and the last round."""
    fed = fedweave.federation(data, clinics, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds, eval_every=rounds)
    return fed, last


# %% [markdown]
# First two yardsticks. Every clinic alone, which needs nobody, and one clinic that holds everything, which nobody may
# have.

# %%
_, alone = trained(Standalone(model, steps=4, **training))
print("alone, each clinic:", {clinic: round(value, 3) for clinic, value in alone.of_clients("accuracy").items()})

whole = pool_clients(cut)
wide = kind.build(fedweave.width(data, whole), data.classes)
_, together = trained(PooledGNN(wide, steps=4, **training), whole)
print(f"all data in one place: {together.summary['local/accuracy']:.3f}")

# %% [markdown]
# Now GLASU. The clinics exchange representations after the last layer, once in a round, and take four training steps
# with what they got. With `secure_sum` the server learns the mean of the three and no single one.

# %%
fed, joint = trained(GLASU(model, exchanges=1, steps=4, secure_sum=True, **training))
print("together, each clinic:", {clinic: round(value, 3) for clinic, value in joint.of_clients("accuracy").items()})

# %% [markdown]
# No clinic sees another's columns, and each model is better than the best clinic alone. Compare it with all data in one
# place, too. What passed, and what does whoever receives it learn?

# %%
rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["reveals"]]
for reveals in dict.fromkeys(row["reveals"] for row in rows if not row["key"].startswith("own")):
    sent = sum(row["bytes"] for row in rows if row["reveals"] == reveals)
    print(f"{sent / 1e6:5.2f} MB  {reveals}")

# %% [markdown]
# More exchanges cost more. Here two, after both layers, in place of one:

# %%
more, last = trained(GLASU(model, exchanges=2, steps=4, secure_sum=True, **training))
for exchanges, run, found in ((1, fed, joint), (2, more, last)):
    sent = f"{run.ledger.bytes_up / 1e6:.1f} MB sent"
    print(f"exchanges = {exchanges}: accuracy {found.summary['local/accuracy']:.3f}, {sent}")

# %% [markdown]
# They need not be worth it: choose by validation, with several seeds.
#
# A mean of representations is not nothing: with two clinics each would learn the other's. Noise on every row
# (`sigma`, `clip`) gives an ε besides. What is promised, and what is not: [Vertical federations](../vertical.md).
