"""What a run writes: checkpoints, records of individuals, metrics, TensorBoard events."""
