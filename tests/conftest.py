"""Fixtures that several test modules share, and how tests are spread over workers."""

import pytest

pytest_plugins = ["tests.build_helpers", "tests.docker_engine"]

#: Modules that need the Docker engine: one worker runs them all, so that one engine is started.
DOCKER_MODULES = ("test_sandbox_conformance", "test_sandboxes", "test_both_sandboxes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each module in one worker: its fixtures build real environments, once."""
    for item in items:
        group = "docker" if item.path.stem in DOCKER_MODULES else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
