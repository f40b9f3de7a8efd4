"""What a run writes: checkpoints, records of individuals, metrics, trackers' files."""
