"""Continued pretraining on real text: the files of Python's own library and of the installed packages."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from benchmarks.pretrain_moe import Curve, best, compare, picture, sooner


def test_muon_learns_more_than_adamw_in_the_same_cpu_time() -> None:
    """15 CPU seconds each, at the rate that was best for each: about 40 steps."""
    curves = compare(15.0, warm=10, runs=(("muon", 1e-2), ("adamw", 3e-3)), parts=1)
    start, muon, adamw = curves[0].points[0][1], *(curve.points[-1][1] for curve in curves)
    assert curves[0].points[0] == curves[1].points[0], "both go on from the same weights"
    assert adamw < start - 0.1, "a byte's loss falls"
    assert muon < adamw


def test_what_is_said_of_curves() -> None:
    curves = [
        Curve("muon", 0.1, 9, ((0.0, 3.0), (5.0, 2.0), (10.0, 1.0))),
        Curve("muon", 0.2, 9, ((0.0, 3.0), (5.0, 2.9), (10.0, 2.8))),
        Curve("adamw", 0.1, 9, ((0.0, 3.0), (5.0, 2.5), (10.0, 1.5))),
    ]
    assert best(curves, "muon") is curves[0]
    assert sooner(curves) == 0.75
    assert ET.fromstring(picture(curves)).tag.endswith("svg")
