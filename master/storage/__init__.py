"""What a run writes beside its checkpoints: the replay log, records of individuals, metrics."""
