"""What runs and tables give after training: scores, reasons, drift, and a model that forgets."""
