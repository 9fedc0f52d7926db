"""What two papers claim of methods that FairGFL is compared with, on Cora cut by Louvain, over seeds.

FedGCN (Yao et al. 2023): with the sums of two hops, training comes near training on pooled data. 10 clients; global model on
all clients' test nodes. FED-PUB (Baek et al. 2023): clients' personal models are better than FedAvg's. 20 clients; the models
that clients use, and FedAvg's also after local training ("trained"). Test accuracy of the round with the best validation
accuracy, of two learning rates the one with the better validation accuracy on seed 0; mean ± deviation, and differences
paired over seeds with 95 % intervals.

    python -m benchmarks.claims [--seeds 5] [--rounds 100]
"""

import argparse
