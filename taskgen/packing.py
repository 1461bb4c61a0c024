"""From a proven candidate to a task: statement, patches, archives, row; or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from taskgen import __version__, statement, taskset
from taskgen.archive import ArchiveEntry
from taskgen.errors import SourceError
from taskgen.languages.python_tests import remove_tests
from taskgen.leaks.decoders.table import DECODERS
from taskgen.repository import Repository, edited
from taskgen.types import SCHEMA_VERSION, Candidate, Recipe, Rejection
from taskgen.validation import Proven

DETECTORS = ("scrub-rules", "text", *(decoder.NAME for decoder in DECODERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A task that is ready to be written."""

    row: dict[str, Any]
    workspace: tuple[ArchiveEntry, ...]
    tests: tuple[ArchiveEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What the audit of a candidate that does not leak saw: bytes of its environment, and the thief's reward."""

    environment_bytes: int
    thief_reward: float


def pack(
    repository: Repository, candidate: Candidate, proven: Proven, recipe: Recipe, audited: Audited
) -> Packed | Rejection:
    """Assemble a task. What cannot be stated or restored, or can be stolen, becomes a Rejection."""
    project = repository.survey.project

    def rejected(stage: str, reason: str, detail: str) -> Rejection:
        return Rejection(candidate=candidate.instance_id, stage=stage, reason=reason, detail=detail)

    if audited.thief_reward:
        return rejected("audit", "a thief earns the reward", f"{audited.thief_reward:g}")
    text = statement.write(
        candidate,
        recipe,
        project,
        repository.documents,
        repo=repository.spec.name,
        fail_to_pass=proven.fail_to_pass,
        n_passing=len(proven.pass_to_pass),
    )
    if text is None:
        return rejected("statement", "nothing of it can be described: no public name, no signature left", "")
    if names := statement.unnamed(text, candidate, project, proven.fail_to_pass):
        return rejected("statement", "hidden tests use names that the statement lacks", ", ".join(names[:8]))
    removed = remove_tests(project.tests, proven.fail_to_pass)
    workspace = edited(repository.entries, {**candidate.deletion.files, **removed})
    try:
        patches = taskset.make_patches(
            _changes(repository.entries, candidate.deletion.files), _changes(repository.entries, removed)
        )
    except SourceError as error:
        return rejected("gold", "no patch restores the tree", str(error))
    tests = tuple(repository.entries[path] for path in repository.test_files)
    row = _row(repository, candidate, proven, recipe, text, patches, tuple(workspace), audited)
    return Packed(row=row, workspace=tuple(workspace), tests=tests)


def _changes(entries: Mapping[str, ArchiveEntry], files: Mapping[str, bytes | None]) -> taskset.Changes:
    workspace = {e.path: e for e in edited({p: entries[p] for p in files}, files)}
    return taskset.Changes(
        pristine={path: entries[path] for path in files}, workspace={path: workspace.get(path) for path in files}
    )


def _row(
    repository: Repository,
    candidate: Candidate,
    proven: Proven,
    recipe: Recipe,
    text: str,
    patches: taskset.Patches,
    workspace: Iterable[ArchiveEntry],
    audited: Audited,
) -> dict[str, Any]:
    source = repository.checkout.source
    return {
        "schema_version": SCHEMA_VERSION,
        "instance_id": candidate.instance_id,
        "repo": repository.spec.name,
        "base_commit": repository.checkout.commit,
        "source": {**asdict(source), "kind": source.kind.value},
        "language": repository.environment.language,
        "recipe": recipe.name,
        "recipe_sha256": recipe.sha256,
        "problem_statement": text,
        "patch": patches.gold,
        "test_patch": patches.tests,
        "deletion_patch": patches.deletion,
        "FAIL_TO_PASS": list(proven.fail_to_pass),
        "PASS_TO_PASS": list(proven.pass_to_pass),
        "test_files": list(repository.test_files),
        "deleted": [
            {
                "path": d.definition.path,
                "qualified_name": d.definition.qualified_name,
                "kind": d.definition.kind,
                "signature": d.definition.signature,
                "start_line": d.definition.start_line,
                "end_line": d.definition.end_line,
                "lines": d.definition.end_line - d.definition.start_line + 1,
            }
            for d in candidate.deletion.deleted
        ],
        "environment": taskset.environment_row(repository.environment),
        "checks": {**asdict(proven.evidence), "flaky": list(proven.evidence.flaky)},
        "audit": {
            "scanner_version": __version__,
            "detectors": list(DETECTORS),
            "bytes_scanned": sum(len(entry.content) for entry in workspace) + audited.environment_bytes,
            "findings_removed": [
                {"detector": kind, "count": number} for kind, number in sorted(repository.tree.scrubbed.items())
            ],
            "thief_reward": audited.thief_reward,
        },
        "difficulty": None,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
