"""The table of operators. Adding one is a module and a line here."""

from __future__ import annotations

from taskgen.deletion import Operator
from taskgen.deletions import feature, function, method_group, module, whole_class

OPERATORS: dict[str, Operator] = {
    "function": function,
    "method-group": method_group,
    "class": whole_class,
    "module": module,
    "feature": feature,
}
