"""The live panel, the log, JSON lines and videos that show a run."""
