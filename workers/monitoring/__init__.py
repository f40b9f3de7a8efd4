"""What a worker offers to Prometheus."""
