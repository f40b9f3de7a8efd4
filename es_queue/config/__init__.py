"""The settings of a run: their definitions, parsing, checks, schedules and recipes."""
