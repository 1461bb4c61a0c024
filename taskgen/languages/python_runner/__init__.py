"""Programs that run inside the sandbox, with the repository's interpreter: the standard library, pytest and
coverage are all they import. ``serve`` keeps the workspace in order and forks ``child`` for each run."""
