"""What algorithms for vertically split data are made of: the split model, aggregation, sampling."""
