"""The training loop in both schedules, the state that it carries, and its checkpoint."""
