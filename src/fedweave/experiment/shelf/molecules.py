"""Columns of molecules as chemists use them: Morgan counts and RDKit's descriptors."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedweave.datasets.molecules import read_molecule

RADIUS, BITS = 2, 2048
LARGEST = 1e9  # of a descriptor; a few grow exponentially with the molecule
SLOW = ("qed", "SPS", "Ipc", "AvgIpc", "BCUT2D")  # beginnings of the names that take half of the time


def morgan_counts(smiles: Sequence[str]) -> sp.csr_matrix:
    """float32 [molecules, 2048]: how often each neighborhood of atoms of radius 2 is in a molecule, by the hash of
    `rdFingerprintGenerator` (Rogers and Hahn 2010, "Extended-connectivity fingerprints"); 0 of what RDKit cannot
    read."""
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    rows = list[sp.csr_matrix]()
    for text in smiles:
        molecule = read_molecule(text)
        counts = np.zeros(BITS) if molecule is None else generator.GetCountFingerprintAsNumPy(molecule)
        rows.append(sp.csr_matrix(counts.astype(np.float32)))
    return sp.vstack(rows, format="csr")


def descriptors(smiles: Sequence[str]) -> np.ndarray:
    """float32 [molecules, k]: the descriptors of `rdkit.Chem.Descriptors` without the `SLOW` ones; 0 where one is not
    defined."""
    from rdkit import rdBase
    from rdkit.Chem import Descriptors

    functions = [function for name, function in Descriptors.descList if not name.startswith(SLOW)]
    values = np.zeros((len(smiles), len(functions)))
    with rdBase.BlockLogs():
        for row, text in enumerate(smiles):
            molecule = read_molecule(text)
            for column, function in enumerate(functions if molecule is not None else ()):
                values[row, column] = function(molecule)
    return np.nan_to_num(values, posinf=LARGEST, neginf=-LARGEST).clip(-LARGEST, LARGEST).astype(np.float32)
