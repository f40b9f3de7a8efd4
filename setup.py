"""The part of the metadata that is not in pyproject.toml: the address of the repository.

A release build names it: ``ES_QUEUE_REPOSITORY=https://HOST/OWNER/es-queue python -m build``.
"""

import os

from setuptools import setup

repository = os.environ.get("ES_QUEUE_REPOSITORY", "").rstrip("/")
setup(
    project_urls={
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }
    if repository
    else {}
)
