"""All decoders, in the order in which they are asked: the surest marks first, names last."""

from __future__ import annotations

from types import ModuleType
from typing import cast

from taskgen.leaks.decoder import Decoder
from taskgen.leaks.decoders import (
    archive_ar,
    archive_tar,
    archive_zip,
    ccache_entry,
    compressed,
    ctags_index,
    editor_swap,
    elf_debug,
    elf_file,
    elf_symbols,
    git_object,
    git_pack,
    go_archive,
    go_functions,
    html_page,
    http_cache,
    java_class,
    javascript_bundle,
    json_strings,
    llvm_bitcode,
    mypy_cache,
    notebook,
    python_bytecode,
    python_pickle,
    rust_metadata,
    sphinx_inventory,
    sqlite_file,
    unified_diff,
    utf16,
    xml_text,
)

_MODULES: tuple[ModuleType, ...] = (
    archive_zip,
    python_bytecode,
    elf_file,
    elf_symbols,
    elf_debug,
    go_functions,
    archive_ar,
    go_archive,
    llvm_bitcode,
    git_object,  # a zlib stream, too
    git_pack,
    sqlite_file,
    java_class,
    compressed,
    archive_tar,
    mypy_cache,
    sphinx_inventory,
    http_cache,
    editor_swap,
    ccache_entry,
    rust_metadata,
    ctags_index,
    python_pickle,
    utf16,
    html_page,
    notebook,
    unified_diff,
    xml_text,
    json_strings,
    javascript_bundle,
)
DECODERS: tuple[Decoder, ...] = tuple(cast(Decoder, module) for module in _MODULES)
