"""Fixtures that several test modules share."""

pytest_plugins = ["tests.docker_engine"]
