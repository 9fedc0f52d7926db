"""Columns of whole molecules as chemists use them: Morgan counts and RDKit's descriptors."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.molecules import read_molecule

NONE, MORGAN, DESCRIPTOR, BOTH = "none", "morgan", "descriptors", "both"
RADIUS, BITS = 2, 2048
LARGEST = 1e9  # of a descriptor; a few grow exponentially with the molecule
SLOW = ("qed", "SPS", "Ipc", "AvgIpc", "BCUT2D")  # beginnings of the names that take half of the time
# Descriptors that models read: sizes, rings, surfaces, electronic states, logP. The list is fixed, so that members with
# other releases of RDKit have the same columns.
DESCRIPTORS = (
    *("MaxAbsEStateIndex", "MaxEStateIndex", "MinAbsEStateIndex", "MinEStateIndex", "qed", "MolWt"),
    *("HeavyAtomMolWt", "NumValenceElectrons", "NumRadicalElectrons", "BalabanJ", "BertzCT", "Chi0", "Chi0n"),
    *("Chi0v", "Chi1", "Chi1n", "Chi1v", "Chi2n", "Chi2v", "Chi3n", "Chi3v", "Chi4n", "Chi4v", "HallKierAlpha"),
    *("Kappa1", "Kappa2", "Kappa3", "LabuteASA", "SMR_VSA1", "SMR_VSA10", "SMR_VSA2", "SMR_VSA3", "SMR_VSA4"),
    *("SMR_VSA5", "SMR_VSA6", "SMR_VSA7", "SMR_VSA8", "SMR_VSA9", "SlogP_VSA1", "SlogP_VSA10", "SlogP_VSA11"),
    *("SlogP_VSA12", "SlogP_VSA2", "SlogP_VSA3", "SlogP_VSA4", "SlogP_VSA5", "SlogP_VSA6", "SlogP_VSA7"),
    *("SlogP_VSA8", "SlogP_VSA9", "TPSA", "EState_VSA1", "EState_VSA10", "EState_VSA11", "EState_VSA2"),
    *("EState_VSA3", "EState_VSA4", "EState_VSA5", "EState_VSA6", "EState_VSA7", "EState_VSA8", "EState_VSA9"),
    *("VSA_EState1", "VSA_EState10", "VSA_EState2", "VSA_EState3", "VSA_EState4", "VSA_EState5", "VSA_EState6"),
    *("VSA_EState7", "VSA_EState8", "VSA_EState9", "FractionCSP3", "HeavyAtomCount", "NHOHCount", "NOCount"),
    *("NumAliphaticCarbocycles", "NumAliphaticHeterocycles", "NumAliphaticRings", "NumAromaticCarbocycles"),
    *("NumAromaticHeterocycles", "NumAromaticRings", "NumHAcceptors", "NumHDonors", "NumHeteroatoms"),
    *("NumRotatableBonds", "NumSaturatedCarbocycles", "NumSaturatedHeterocycles", "NumSaturatedRings"),
    *("RingCount", "MolLogP", "MolMR"),
)


def width(how: str) -> int:
    """How many columns `fingerprint` gives."""
    return BITS * (how in (MORGAN, BOTH)) + len(DESCRIPTORS) * (how in (DESCRIPTOR, BOTH))


def names(how: str) -> tuple[str, ...]:
    """What these columns are called."""
    bits = [f"morgan {at}" for at in range(BITS)] if how in (MORGAN, BOTH) else []
    return (*bits, *((f"descriptor {name}" for name in DESCRIPTORS) if how in (DESCRIPTOR, BOTH) else ()))


def fingerprint(smiles: Sequence[str], how: str) -> sp.csr_matrix:
    """float32 [e, g] of e molecules: log(1 + count) of each bit ("morgan"), `DESCRIPTORS` ("descriptors"), or "both"; 0
    of what RDKit cannot read.

    Raises:
        UserError: RDKit is not installed.
    """
    blocks = list[sp.csr_matrix]()
    if how in (MORGAN, BOTH):
        blocks.append(morgan_counts(smiles).log1p())
    if how in (DESCRIPTOR, BOTH):
        blocks.append(sp.csr_matrix(descriptors(smiles, DESCRIPTORS)))
    return sp.csr_matrix(sp.hstack(blocks, "csr", np.float32))


def morgan_counts(smiles: Sequence[str]) -> sp.csr_matrix:
    """float32 [molecules, 2048]: how often each neighborhood of atoms of radius 2 is in a molecule, by the hash of
    `rdFingerprintGenerator` (Rogers and Hahn 2010, "Extended-connectivity fingerprints"); 0 of what RDKit cannot
    read."""
    molecules = list(map(read_molecule, smiles))
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    rows = list[sp.csr_matrix]()
    for molecule in molecules:
        counts = np.zeros(BITS) if molecule is None else generator.GetCountFingerprintAsNumPy(molecule)
        rows.append(sp.csr_matrix(counts.astype(np.float32)))
    return sp.vstack(rows, format="csr")


def descriptors(smiles: Sequence[str], which: Sequence[str] | None = None) -> np.ndarray:
    """float32 [molecules, k]: the descriptors of `rdkit.Chem.Descriptors` with the names `which`, by default all
    without the `SLOW` ones; 0 where one is not defined."""
    molecules = list(map(read_molecule, smiles))
    from rdkit import rdBase
    from rdkit.Chem import Descriptors

    known = dict(Descriptors.descList)
    functions = [known[name] for name in (which or [name for name in known if not name.startswith(SLOW)])]
    values = np.zeros((len(smiles), len(functions)))
    with rdBase.BlockLogs():
        for row, molecule in enumerate(molecules):
            for column, function in enumerate(functions if molecule is not None else ()):
                values[row, column] = function(molecule)
    return np.nan_to_num(values, posinf=LARGEST, neginf=-LARGEST).clip(-LARGEST, LARGEST).astype(np.float32)
