"""The rows of docs/results.md: trained, measured, stored in docs/results.json, and written."""
