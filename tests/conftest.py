"""Fixtures that several test modules share."""

import pytest

pytest_plugins = ["tests.build_helpers", "tests.docker_engine"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the Docker engine run in one worker, so that one engine is started."""
    for item in items:
        if "docker_engine" in getattr(item, "fixturenames", ()) or "docker" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("docker"))
