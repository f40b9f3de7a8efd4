"""es-plot: pictures of what runs have learnt, from their folders alone."""
