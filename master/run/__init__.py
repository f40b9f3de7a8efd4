"""One run from start to end: paths, lease, setup, training, resume and standby."""
