"""Progress of a training run: plain lines, a live table, and silence."""

from __future__ import annotations

import io

from rich.console import Console
from training_records import evaluation_record, step_record

from taskgen.training.progress import ROWS, TrainingProgress


def seen(*, terminal: bool, quiet: bool = False, n: int = 3) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, soft_wrap=True)
    with TrainingProgress(100, quiet=quiet, console=console) as progress:
        progress.evaluation(evaluation_record(0, 0.25))
        for step in range(1, n + 1):
            progress.step(step_record(step))
        progress.note("[bold]a rule")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_where_there_is_no_terminal_each_step_is_a_line() -> None:
    assert seen(terminal=False).splitlines() == [
        "evaluation at step 0: pass@1 0.250 (0.150 to 0.350), 2 tasks x 8 samples",
        "step 1/100: reward 0.25, pass rate 0.25, entropy 0.8, KL 0.002, length 30.5 (longest 48), tokens/s 71, "
        "staleness 0.5 (most 1)",
        # 98 steps of 27.5 s
        "step 2/100: reward 0.25, pass rate 0.25, entropy 0.8, KL 0.002, length 30.5 (longest 48), tokens/s 71, "
        "staleness 0.5 (most 1), left 0:44:55",
        "step 3/100: reward 0.25, pass rate 0.25, entropy 0.8, KL 0.002, length 30.5 (longest 48), tokens/s 71, "
        "staleness 0.5 (most 1), left 0:44:28",
        "[bold]a rule",
    ]


def test_what_was_not_measured_is_left_out() -> None:
    console = Console(file=io.StringIO(), width=200)
    with TrainingProgress(9, console=console) as progress:
        progress.step(
            step_record(1, reward=None, pass_rate=None, kl=None, length_mean=None, tokens_per_s=0.0, n_faults=8)
        )
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "step 1/9: entropy 0.8, tokens/s 0, staleness 0.5 (most 1), faults 8\n"


def test_a_terminal_keeps_a_table_of_the_last_steps_and_the_time_left() -> None:
    last = seen(terminal=True, n=30).rpartition("tokens/s")[2].splitlines()
    rows = [line.split()[0] for line in last if line.split()[:1] and line.split()[0].isdigit()]
    assert rows == [str(step) for step in range(31 - ROWS, 31)]
    assert "30/100" in last[-1] and "0:32:05 left" in last[-1]


def test_quiet_is_silent() -> None:
    assert seen(terminal=False, quiet=True) == ""
    assert seen(terminal=True, quiet=True) == ""
