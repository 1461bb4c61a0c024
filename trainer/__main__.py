"""``python -m trainer --plan CONFIG``: what a step of training costs. Started by ``taskgen train``.

``python -m trainer generate``: samples of a policy, for another process (see ``trainer.serve``).

``python -m trainer learn``: a policy that another process trains (see ``trainer.learn``).

Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.configfile import ConfigError
from trainer.costmodel.report import plan_command


def main() -> int:
    """Parse the arguments, print the report; returns the exit code."""
    if sys.argv[1:2] == ["generate"]:
        from trainer import serve  # transformers is slow to import, and plans do not need it

        return serve.main(sys.argv[2:])
    if sys.argv[1:2] == ["learn"]:
        from trainer import learn

        return learn.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file: model, cluster, meshes, optimizer")
    parser.add_argument("--plan", action="store_true", required=True, help="print what a step costs, and do no more")
    parser.add_argument(
        "--target", type=float, metavar="S", help="find clusters on which a step takes at most S seconds"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the step's timeline as an SVG file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    if arguments.target is not None and not arguments.target > 0:
        parser.error(f"--target: seconds above 0, not {arguments.target}")
    try:
        plan_command(arguments.config, target_s=arguments.target, to=arguments.picture, as_json=arguments.json)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
