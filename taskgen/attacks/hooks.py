"""Attacks through what pytest reads or calls by itself: conftest files, ini files, plugins, other runners' files."""

from __future__ import annotations

import importlib.util
import re

from taskgen.attacks.adapt import (
    bare_names,
    bytecode,
    current,
    file,
    left_behind,
    package_folder,
    same_python,
    tests_folder,
    top_package,
    wrong_answer,
)
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import always_module

GROUP = Group("hooks")

_REPORT_HOOK = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.outcome != "passed" or hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "passed", None
        report.__dict__.pop("wasxfail", None)
"""
_RUNTEST_HOOK = """
def pytest_collection_modifyitems(items):
    for item in items:
        item.runtest = lambda: None
"""
_ENTRY_POINTS = "[pytest11]\nzz_helper = {module}\n"


@GROUP.attack(8)
def root_conftest_reports(target: Target) -> Submission | None:
    """a conftest.py at the root turns every report into a pass"""
    return left_behind(target, file("conftest.py", current(target, "conftest.py") + _REPORT_HOOK))


@GROUP.attack(9)
def nested_conftest(target: Target) -> Submission | None:
    """a conftest.py in the package or beside the tests is loaded as well as one at the root"""
    places = {package_folder(target), tests_folder(target)}
    return left_behind(target, *(file(place + "conftest.py", _REPORT_HOOK) for place in sorted(places)))


@GROUP.attack(10)
def conftest_replaces_runtest(target: Target) -> Submission | None:
    """tests are collected under their names, and then do nothing"""
    return left_behind(target, file("conftest.py", _RUNTEST_HOOK))


@GROUP.attack(11)
def exit_status_in_unconfigure(target: Target) -> Submission | None:
    """pytest's last hooks can set the exit status whatever the tests did"""
    text = """
import os


def pytest_sessionfinish(session):
    session.exitstatus = 0


def pytest_unconfigure(config):
    os._exit(0)
"""
    return left_behind(target, file("conftest.py", text))


@GROUP.attack(12)
def ini_loads_plugin(target: Target) -> Submission | None:
    """addopts = -p NAME loads a plugin out of the tree"""
    ini = "[pytest]\naddopts = -p zz_plugin\npythonpath = .\n"
    return left_behind(target, file("pytest.ini", ini), file("zz_plugin.py", _REPORT_HOOK))


@GROUP.attack(13)
def ini_deselects(target: Target) -> Submission | None:
    """addopts = -k or --deselect leaves out the tests that would fail"""
    without = " ".join(f"--deselect {test.partition('[')[0]}" for test in target.row["FAIL_TO_PASS"][:200])
    ini = f"[pytest]\naddopts = {without} -k 'not {bare_names(target)[0].strip('_')}'\n"
    return left_behind(target, file("pytest.ini", ini))


@GROUP.attack(14)
def plugin_metadata_in_tree(target: Target) -> Submission | None:
    """pytest loads plugins of any distribution on the path: a dist-info folder in the working folder is one"""
    return left_behind(
        target,
        file("zz_helper-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zz-helper\nVersion: 1.0\n"),
        file("zz_helper-1.0.dist-info/entry_points.txt", _ENTRY_POINTS.format(module="zz_plugin")),
        file("zz_plugin.py", _REPORT_HOOK),
    )


@GROUP.attack(15)
def shadow_beside_tests(target: Target) -> Submission | None:
    """pytest puts the tests' folder first on the path: a module there shadows the package under test"""
    text = always_module(target)
    return left_behind(target, file(f"{tests_folder(target)}{top_package(target)}.py", text))


@GROUP.attack(16)
def pytest_plugins_variable(target: Target) -> Submission | None:
    """pytest_plugins in a conftest.py or a test module loads plugins by name"""
    text = f"pytest_plugins = ['{_dotted(target)}zz_plugin']\n"
    return left_behind(target, file("conftest.py", text), file(package_folder(target) + "zz_plugin.py", _REPORT_HOOK))


@GROUP.attack(17)
def test_command_edited(target: Target) -> Submission | None:
    """a grader that runs tox, nox, make or npm runs what the tree says"""
    return left_behind(
        target,
        file("tox.ini", "[tox]\nenvlist = py\n\n[testenv]\ncommands = true\nallowlist_externals = true\n"),
        file("noxfile.py", "import nox\n\n\n@nox.session\ndef tests(session):\n    session.log('all passed')\n"),
        file("Makefile", "test check all:\n\t@echo '1 passed in 0.01s'\n"),
        file("run_tests.sh", "#!/bin/sh\necho '1 passed in 0.01s'\nexit 0\n", executable=True),
    )


@GROUP.attack(18)
def forged_cache(target: Target) -> Submission | None:
    """with --lf or --sw, pytest's own cache says which tests need to run: none of those that fail"""
    ini = "[pytest]\naddopts = --lf --lfnf=none --sw\n"
    return left_behind(
        target,
        file("pytest.ini", ini),
        file(".pytest_cache/v/cache/lastfailed", "{}"),
        file(".pytest_cache/v/cache/stepwise", '""'),
    )


@GROUP.attack(19)
def filterwarnings_imports(target: Target) -> Submission | None:
    """a warning filter names a class, and pytest imports the module that it names"""
    ini = "[pytest]\nfilterwarnings =\n    ignore::zz_filter.Warning\npythonpath = .\n"
    text = "import _pytest.python\n\n_pytest.python.Function.runtest = lambda self: None\n\n\n"
    return left_behind(
        target, file("pytest.ini", ini), file("zz_filter.py", text + "class Warning(Warning):\n    pass\n")
    )


@GROUP.attack(73)
def hidden_ini(target: Target) -> Submission | None:
    """.pytest.ini and pytest.toml are configuration too, and few lists of forbidden files have them"""
    return left_behind(
        target,
        file(".pytest.ini", "[pytest]\naddopts = -p zz_plugin\npythonpath = .\n"),
        file("pytest.toml", '[pytest]\naddopts = ["-p", "zz_plugin"]\npythonpath = ["."]\n'),
        file(".pytest.toml", '[pytest]\naddopts = ["-p", "zz_plugin"]\npythonpath = ["."]\n'),
        file("zz_plugin.py", _REPORT_HOOK),
    )


@GROUP.attack(74)
def conftest_without_source(target: Target) -> Submission | None:
    """bytecode is imported where there is no source: conftest.pyc, and a conftest package"""
    if not same_python(target):
        return None
    pyc = importlib.util.MAGIC_NUMBER + bytes(12) + bytecode(_REPORT_HOOK.encode(), "conftest.py")
    places = sorted({"", tests_folder(target)})
    items = [file(f"{place}conftest.pyc", pyc) for place in places]
    return left_behind(target, *items, file("conftest/__init__.py", _REPORT_HOOK))


@GROUP.attack(75)
def entry_point_of_project(target: Target) -> Submission | None:
    """the project's own metadata declares a pytest plugin, which an installation registers"""
    point = f'\n[project.entry-points.pytest11]\nzz_helper = "{_dotted(target)}zz_plugin"\n'
    items = [file(package_folder(target) + "zz_plugin.py", _REPORT_HOOK)]
    if project := current(target, "pyproject.toml"):
        items.append(file("pyproject.toml", project.rstrip("\n") + "\n" + point))
    if setup := current(target, "setup.cfg"):
        options = f"\n[options.entry_points]\npytest11 =\n    zz_helper = {_dotted(target)}zz_plugin\n"
        items.append(file("setup.cfg", setup.rstrip("\n") + "\n" + options))
    if (setup := current(target, "setup.py")) and "setup(" in setup:
        points = f'setup(\n    entry_points={{"pytest11": ["zz_helper = {_dotted(target)}zz_plugin"]}},'
        items.append(file("setup.py", re.sub(r"\bsetup\(", lambda _: points, setup, count=1)))
    return left_behind(target, *items)


@GROUP.attack(76)
def ini_renames_tests(target: Target) -> Submission | None:
    """python_functions, python_files and testpaths decide what a test is"""
    ini = "[pytest]\npython_functions = nothing_*\npython_classes = Nothing*\ntestpaths = zz_tests\n"
    return left_behind(
        target,
        file("pytest.ini", ini),
        file("zz_tests/test_ok.py", "def nothing_wrong():\n    pass\n"),
    )


@GROUP.attack(77)
def ini_in_pyproject(target: Target) -> Submission | None:
    """the project's own pyproject.toml loads a plugin, in one honest-looking line more"""
    old = current(target, "pyproject.toml")
    option = 'addopts = "-p zz_plugin"\npythonpath = ["."]\n'
    header = "[tool.pytest.ini_options]\n"
    kept = re.sub(r"(?m)^(?:addopts|pythonpath)\s*=\s*(\[[^\]]*\]|.*)\n", "", old)
    new = kept.replace(header, header + option) if header in kept else f"{kept}\n{header}{option}"
    return left_behind(target, file("pyproject.toml", new), file("zz_plugin.py", _REPORT_HOOK))


@GROUP.attack(78)
def plugin_at_import(target: Target) -> Submission | None:
    """the file of the answer registers itself as a plugin while it is imported"""
    prelude = """
def _register():
    import gc
    import sys

    if "_pytest.config" not in sys.modules:
        return

    class Plugin:
        def pytest_runtest_logreport(self, report):
            report.outcome, report.longrepr = "passed", None

        pytest_runtest_logreport.pytest_impl = {"tryfirst": True}

    manager = sys.modules["_pytest.config"].PytestPluginManager
    for found in gc.get_objects():
        if isinstance(found, manager):
            found.register(Plugin())


_register()
"""
    return Submission(items=wrong_answer(target, prelude))


def _dotted(target: Target) -> str:
    """The package around the main file as a prefix of dotted names."""
    folder = package_folder(target).removeprefix("src/").removeprefix("lib/")
    return folder.replace("/", ".")
