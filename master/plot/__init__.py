"""es-plot: figures of runs, from their folders."""
