"""What each kind of sandbox guarantees, and which test of the conformance suite proves it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from taskgen.sandboxes import cgroup, seccomp

KINDS = ("bubblewrap", "docker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One line of the table.

    Attributes:
        name: what is guaranteed.
        by: kind of sandbox -> how; '' where it is not given on this machine.
        proofs: tests of tests/test_sandbox_conformance.py that try the opposite, on every kind.
    """

    name: str
    by: dict[str, str]
    proofs: tuple[str, ...]


def guarantees() -> list[Guarantee]:
    """The table for this machine: of bubblewrap's limits, some need a control group that may be written."""
    groups = cgroup.find()
    each = "each process by itself: no control group can be written here"
    # The kernel does not count the processes of root, and bubblewrap's user is root outside where taskgen is.
    each_process = "" if os.geteuid() == 0 else each
    return [
        _line("no privileges: own uid, no capabilities, none to be gained", "user namespace, no-new-privileges",
              "uid 1000, cap-drop ALL, no-new-privileges", "test_runs_without_privileges"),
        _line("system calls of the kernel's own business are refused",
              "seccomp (sandbox/seccomp.json)" if seccomp.program() else "", "seccomp (sandbox/seccomp.json)",
              "test_system_calls_of_the_kernels_own_business_are_refused"),
        _line("other processes are not seen", "pid namespace", "pid namespace", "test_other_processes_are_hidden"),
        _line("no network", "network namespace", "network none", "test_no_network"),
        _line("nothing of the host's files", "mount namespace", "the image's own files", "test_host_files_are_hidden",
              "test_sandboxes_do_not_see_each_other"),
        _line("no devices, no engine's socket", "own /dev", "own /dev", "test_there_are_no_devices_of_the_host",
              "test_no_socket_of_an_engine_is_there"),
        _line("the system is read-only", "read-only binds", "read-only root", "test_system_is_read_only",
              "test_nothing_else_is_writable"),
        _line("the environment is read-only once it is kept", "read-only bind", "image layer",
              "test_env_is_writable_then_kept_then_read_only"),
        _line("no variables of the host", "clearenv", "fixed", "test_environment_is_fixed"),
        _line("memory is bounded over all processes", "control group" if groups else each, "control group",
              "test_memory_hog_does_not_end_the_sandbox", "test_memory_is_bounded_over_all_processes"),
        _line("processes are bounded", "control group" if groups else each_process, "control group",
              "test_fork_bomb_is_capped"),
        _line("processor time is bounded", "control group" if groups and groups.bounds_cpu() else "", "control group",
              "test_processor_time_is_bounded"),
        _line("files and what is in /tmp are bounded", "RLIMIT_FSIZE, sized tmpfs", "RLIMIT_FSIZE, sized tmpfs",
              "test_size_of_a_file_is_bounded", "test_files_in_tmp_cannot_end_the_sandbox"),
        _line("output is bounded", "kept head and tail", "kept head and tail", "test_flood_is_bounded_and_counted"),
        _line("nothing outlives a program", "pid namespace ends", "everything is killed",
              "test_time_limit_kills_daemons_too", "test_daemons_die_with_a_program_that_ends"),
        _line("nothing is left of a closed sandbox", "folder removed", "container removed",
              "test_close_removes_what_is_hard_to_remove", "test_close_ends_a_running_program"),
        _line("nothing is left of a killed taskgen", "stale folders removed by the next", "found by label",
              "test_what_a_killed_taskgen_left_is_removed_by_the_next"),
    ]  # fmt: skip


def _line(name: str, bubblewrap: str, docker: str, *proofs: str) -> Guarantee:
    return Guarantee(name=name, by=dict(zip(KINDS, (bubblewrap, docker), strict=True)), proofs=proofs)
