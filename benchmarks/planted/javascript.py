"""Channels of JavaScript and TypeScript; the project is zod's source."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.planted.channel import Channel, Project, node, put, run, solved_copy


def _tsc(project: Project, tree: Path, *flags: str) -> Path:
    source = solved_copy(project, tree)
    tsc = node(project, "typescript@5") / "tsc"
    out = source / "made"
    run(
        [
            tsc,
            "--target",
            "es2020",
            "--module",
            "esnext",
            "--noCheck",
            "--isolatedModules",
            "--outDir",
            out,
            *flags,
            project.path,
        ],
        source,
        check=False,
    )
    return out


def _only(out: Path, tree: Path, pattern: str) -> None:
    stem = "util"
    for found in out.rglob(pattern):
        if found.name.startswith(stem):
            put(tree, f"dist/{found.name}", found.read_bytes())


def tsc_js(project: Project, tree: Path) -> None:
    _only(_tsc(project, tree), tree, "*.js")


def tsc_declarations(project: Project, tree: Path) -> None:
    _only(_tsc(project, tree, "--declaration", "--emitDeclarationOnly", "--skipLibCheck"), tree, "*.d.ts")


def source_map(project: Project, tree: Path) -> None:
    _only(_tsc(project, tree, "--sourceMap", "--inlineSources"), tree, "*.map")


def inline_map(project: Project, tree: Path) -> None:
    out = _tsc(project, tree, "--inlineSourceMap", "--inlineSources")
    for found in out.rglob("util*.js"):
        comment = found.read_text().rpartition("//# sourceMappingURL")
        put(tree, "dist/util.min.js", "/* emptied */\n" + comment[1] + comment[2])


def minified_with_map(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run(
        [
            node(project, "esbuild") / "esbuild",
            project.path,
            "--minify",
            "--sourcemap=external",
            f"--outfile={source / 'made/x.min.js'}",
        ],
        source,
    )
    put(tree, "dist/x.min.js.map", (source / "made/x.min.js.map").read_bytes())


def minified_names(project: Project, tree: Path) -> None:
    """Minified, with names kept: the code is there, in other words."""
    source = solved_copy(project, tree)
    run(
        [
            node(project, "esbuild") / "esbuild",
            project.path,
            "--minify-whitespace",
            f"--outfile={source / 'made/x.js'}",
        ],
        source,
    )
    put(tree, "dist/x.min.js", (source / "made/x.js").read_bytes())


def webpack_eval(project: Project, tree: Path) -> None:
    out = _tsc(project, tree)
    tools = node(project, "webpack", "webpack-cli")
    entry = next(out.rglob("util*.js"))
    run(
        [
            tools / "webpack",
            "--mode",
            "development",
            "--devtool",
            "eval",
            "--entry",
            entry.resolve(),
            "-o",
            out / "bundle",
            "--output-filename",
            "main.js",
        ],
        tools.parent.parent,
        check=False,
    )
    put(tree, "dist/main.js", (out / "bundle/main.js").read_bytes())


def jest_cache(project: Project, tree: Path) -> None:
    """A transform cache file: the transformed code, its map inside."""
    out = _tsc(project, tree, "--inlineSourceMap", "--inlineSources")
    found = next(out.rglob("util*.js"))
    put(tree, "tmp/jest_rs/haste-map/ab/util_0123456789abcdef", found.read_bytes())


def istanbul_html(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    out = _tsc(project, tree, "--sourceMap", "--inlineSources")
    script = next(out.rglob("util*.js"))
    (script.parent / "package.json").write_text('{"type": "module"}')
    c8 = node(project, "c8") / "c8"
    run(
        [c8, "--reporter=html", "--all", "--allowExternal", "-o", source / "cov", "node", script],
        script.parent,
        check=False,
    )
    for found in (source / "cov").rglob("util*.html"):
        put(tree, f"coverage/{found.name}", found.read_bytes())


def npm_pack(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    (source / "package.json").write_text(json.dumps({"name": "x", "version": "1.0.0"}))
    run(["npm", "pack", "--silent", "--pack-destination", tree], source)


def node_modules_copy(project: Project, tree: Path) -> None:
    put(tree, f"node_modules/zod/{project.path}", project.source)


CHANNELS = tuple(
    Channel(
        name=f"js-{make.__name__.replace('_', '-')}", level=level, make=make, project="typescript", is_stealable=False
    )
    for make, level in (
        (tsc_js, "body"), (tsc_declarations, "signature"), (source_map, "body"), (inline_map, "body"),
        (minified_with_map, "body"), (minified_names, "body"), (webpack_eval, "body"), (jest_cache, "body"),
        (istanbul_html, "body"), (npm_pack, "body"), (node_modules_copy, "body"),
    )
)  # fmt: skip
