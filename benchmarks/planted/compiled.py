"""Channels of compiled languages: Java (JPype's sources), C (lz4), Rust (heck)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.planted.channel import Channel, Project, put, run, solved_copy


def _javac(project: Project, tree: Path, *flags: str) -> Path:
    source = solved_copy(project, tree)
    run(["javac", "-nowarn", "-d", source / "classes", *flags, project.path], source)
    return source


def _classes(source: Path, tree: Path) -> None:
    for found in (source / "classes").rglob("*.class"):
        put(tree, f"target/classes/{found.relative_to(source / 'classes')}", found.read_bytes())


def java_class(project: Project, tree: Path) -> None:
    _classes(_javac(project, tree), tree)


def java_class_debug(project: Project, tree: Path) -> None:
    _classes(_javac(project, tree, "-g", "-parameters"), tree)


def java_jar(project: Project, tree: Path) -> None:
    source = _javac(project, tree)
    run(["jar", "cf", tree / "lib.jar", "-C", source / "classes", "."], source)


def java_sources_jar(project: Project, tree: Path) -> None:
    run(["jar", "cf", tree / "lib-sources.jar", project.path], solved_copy(project, tree))


def _javadoc(project: Project, tree: Path) -> Path:
    source = solved_copy(project, tree)
    run(["javadoc", "-quiet", "-private", "-Xdoclint:none", "-d", source / "api", project.path], source, check=False)
    return source / "api"


def javadoc_page(project: Project, tree: Path) -> None:
    api = _javadoc(project, tree)
    for found in api.rglob(f"{Path(project.path).stem}.html"):
        put(tree, f"target/apidocs/{found.relative_to(api)}", found.read_bytes())


def javadoc_search(project: Project, tree: Path) -> None:
    put(
        tree, "target/apidocs/member-search-index.js", (_javadoc(project, tree) / "member-search-index.js").read_bytes()
    )


def _gcc(project: Project, tree: Path, output: str, *flags: str) -> Path:
    source = solved_copy(project, tree)
    run(["gcc", "-I", str(Path(project.path).parent), *flags, project.path, "-o", source / output], source)
    return source / output


def c_object_debug(project: Project, tree: Path) -> None:
    put(tree, "build/x.o", _gcc(project, tree, "x.o", "-g", "-O1", "-c").read_bytes())


def c_object_compressed(project: Project, tree: Path) -> None:
    put(tree, "build/x.o", _gcc(project, tree, "x.o", "-g", "-O1", "-gz=zlib", "-c").read_bytes())


def c_archive(project: Project, tree: Path) -> None:
    built = _gcc(project, tree, "x.o", "-O1", "-c")
    run(["ar", "rcs", tree / "libx.a", built], tree)


def c_shared(project: Project, tree: Path) -> None:
    put(tree, "libx.so", _gcc(project, tree, "libx.so", "-O1", "-shared", "-fPIC").read_bytes())


def c_preprocessed(project: Project, tree: Path) -> None:
    put(tree, "x.i", _gcc(project, tree, "x.i", "-E").read_bytes())


def c_assembly(project: Project, tree: Path) -> None:
    put(tree, "x.s", _gcc(project, tree, "x.s", "-S", "-fverbose-asm", "-O1").read_bytes())


def c_gcno(project: Project, tree: Path) -> None:
    built = _gcc(project, tree, "x.o", "-O0", "--coverage", "-c")
    put(tree, "build/x.gcno", next(built.parent.rglob("*.gcno")).read_bytes())


def c_ccache(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run(
        ["ccache", "gcc", "-O1", "-g", "-I", str(Path(project.path).parent), "-c", project.path, "-o", source / "x.o"],
        source,
        env={"CCACHE_DIR": str(tree / ".ccache"), "CCACHE_COMPRESS": "1"},
    )


def _cargo(project: Project, tree: Path, *words: str) -> Path:
    source = solved_copy(project, tree)
    cargo = Path.home() / ".cargo/bin/cargo"
    run([cargo, *words, "--offline"], source, env={"CARGO_TARGET_DIR": str(source / "target")})
    return source / "target"


def rust_rlib(project: Project, tree: Path) -> None:
    made = _cargo(project, tree, "build", "--lib")
    for found in (made / "debug").glob("*.rlib"):
        put(tree, f"target/debug/{found.name}", found.read_bytes())


def rust_rmeta(project: Project, tree: Path) -> None:
    made = _cargo(project, tree, "check", "--lib")
    for found in (made / "debug/deps").glob("*.rmeta"):
        put(tree, f"target/debug/deps/{found.name}", found.read_bytes())


def rust_incremental(project: Project, tree: Path) -> None:
    made = _cargo(project, tree, "build", "--lib")
    for found in (made / "debug/incremental").rglob("*"):
        if found.is_file():
            put(tree, f"target/debug/incremental/{found.relative_to(made / 'debug/incremental')}", found.read_bytes())


def rust_doc(project: Project, tree: Path) -> None:
    made = _cargo(project, tree, "doc", "--no-deps", "--lib")
    for found in (made / "doc/src").rglob("*.html"):
        put(tree, f"target/doc/src/{found.name}", found.read_bytes())


def rust_crate(project: Project, tree: Path) -> None:
    made = _cargo(project, tree, "package", "--no-verify", "--allow-dirty")
    found = next(made.rglob("*.crate"))
    put(tree, f"target/package/{found.name}", found.read_bytes())


def _channels(project: str, *pairs: tuple[object, str]) -> tuple[Channel, ...]:
    return tuple(
        Channel(name=make.__name__.replace("_", "-"), level=level, make=make, project=project, is_stealable=False)  # type: ignore[attr-defined, arg-type]
        for make, level in pairs
    )


CHANNELS = (
    *_channels(
        "java", (java_class, "body"), (java_class_debug, "body"), (java_jar, "body"), (java_sources_jar, "body"),
        (javadoc_page, "signature"), (javadoc_search, "name"),
    ),
    *_channels(
        "c", (c_object_debug, "name"), (c_object_compressed, "name"), (c_archive, "name"), (c_shared, "name"),
        (c_preprocessed, "body"), (c_assembly, "name"), (c_gcno, "name"), (c_ccache, "name"),
    ),
    *_channels(
        "rust", (rust_rlib, "name"), (rust_rmeta, "name"), (rust_incremental, "name"), (rust_doc, "body"),
        (rust_crate, "body"),
    ),
)  # fmt: skip
