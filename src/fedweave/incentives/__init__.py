"""What members of a federation contribute, get and are owed: values, payoffs, statements of account, and motifs."""
