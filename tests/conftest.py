"""Fixtures that several test modules share."""

pytest_plugins = ["tests.build_helpers", "tests.docker_engine", "tests.tiny_model"]
