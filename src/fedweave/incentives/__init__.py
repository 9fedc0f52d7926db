"""Members' contributions and rewards: values, payoffs, statements of account, and motifs."""
