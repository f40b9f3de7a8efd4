"""es-status --web: runs in a browser, and as Prometheus text; read-only."""
