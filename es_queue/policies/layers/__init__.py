"""Building blocks of the policies: convolutions, cells, activations, initial weights."""
