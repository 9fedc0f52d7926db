"""Components of algorithms for vertically partitioned data: the split model, aggregation, sampling."""
