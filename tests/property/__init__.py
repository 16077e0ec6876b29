"""Properties: lists of operations by hypothesis, compared with the reference model."""
