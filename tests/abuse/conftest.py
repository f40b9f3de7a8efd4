"""The fixtures of the integration tests: real processes, none of which outlives its test."""

from tests.integration.conftest import processes, short_folder, start_master

__all__ = ["processes", "short_folder", "start_master"]
