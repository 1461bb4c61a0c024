"""What a step of sharded Muon costs on a cluster that one does not have: memory, operations, bytes, seconds.

Arithmetic on shapes; no process group is started and no tensor is filled (docs/costmodel.md has the formulas).
"""
