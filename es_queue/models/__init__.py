"""Models too large to publish: workers hold the weights, and a publication is the update."""
