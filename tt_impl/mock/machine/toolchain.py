"""Stand-in for the RISC-V compiler: programs are built for the mock, but no kernel is ever run.

ttnn compiles each kernel with ``riscv-tt-elf-g++`` and maps the ELF it gets. The stand-in answers ``--version``,
writes a dependency file and links one fixed ELF to the output, in one step, because processes that share a cache would
otherwise map half a file, and in one process, because a program has hundreds of kernels.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tt_impl.run.installed import COMPILER

_SHIM = """#!/bin/sh
# Stand-in for the kernel compiler of a mock mesh: what it writes is never run.
if [ "$1" = "--version" ]; then echo "riscv-tt-elf-g++ (mock) 15.1.0"; exit 0; fi
previous= out= dependencies=
for argument in "$@"; do
  case "$previous" in -o) out="$argument" ;; -MF) dependencies="$argument" ;; esac
  previous="$argument"
done
if [ -n "$dependencies" ]; then echo "$out:" > "$dependencies"; fi
if [ -n "$out" ]; then exec ln -f "{elf}" "$out"; fi
"""

_BASE = 0x9040
"""Load address; any address in a Tensix core's L1 does."""


def write_stand_in(sfpi: Path) -> None:
    """Put the stand-in where ttnn looks for the toolchain: ``sfpi``/compiler/bin."""
    compiler = sfpi / COMPILER
    compiler.parent.mkdir(parents=True)
    elf = sfpi / "kernel.elf"
    elf.write_bytes(tiny_elf())
    compiler.write_text(_SHIM.format(elf=elf), encoding="utf-8")
    compiler.chmod(0o755)


def tiny_elf() -> bytes:
    """Make the smallest executable ELF that ttnn's loader accepts: RISC-V, one segment, two symbols, one relocation."""
    text = struct.pack("<3I", 0x00000097, 0x000080E7, 0x00008067)  # auipc ra, 0; jalr ra; ret
    names = b"\0_start\0__global_pointer$\0"
    sections = b"\0.text\0.rela.text\0.symtab\0.strtab\0.shstrtab\0"
    relocations = struct.pack("<IIi", _BASE, (2 << 8) | 19, 0)  # R_RISCV_CALL_PLT of symbol 2

    def symbol(name: bytes, value: int, info: int, section: int) -> bytes:
        offset = names.index(b"\0" + name + b"\0") + 1 if name else 0
        return struct.pack("<IIIBBH", offset, value, 0, info, 0, section)

    symbols = (
        symbol(b"", 0, 0, 0) + symbol(b"__global_pointer$", _BASE, 0x10, 0xFFF1) + symbol(b"_start", _BASE, 0x10, 1)
    )

    offset_text = 52 + 32
    offset_relocations = offset_text + len(text)
    offset_symbols = offset_relocations + len(relocations)
    offset_names = offset_symbols + len(symbols)
    offset_sections = offset_names + len(names)
    offset_headers = (offset_sections + len(sections) + 3) & ~3

    def section(name: bytes, kind: int, flags: int, addr: int, offset: int, size: int, **rest: int) -> bytes:
        start = sections.index(b"\0" + name + b"\0") + 1 if name else 0
        tail = (rest.get("link", 0), rest.get("info", 0), rest.get("align", 1), rest.get("entry", 0))
        return struct.pack("<10I", start, kind, flags, addr, offset, size, *tail)

    headers = (
        section(b"", 0, 0, 0, 0, 0, align=0)
        + section(b".text", 1, 6, _BASE, offset_text, len(text), align=4)
        + section(b".rela.text", 4, 0x40, 0, offset_relocations, len(relocations), link=3, info=1, align=4, entry=12)
        + section(b".symtab", 2, 0, 0, offset_symbols, len(symbols), link=4, info=1, align=4, entry=16)
        + section(b".strtab", 3, 0, 0, offset_names, len(names))
        + section(b".shstrtab", 3, 0, 0, offset_sections, len(sections))
    )
    identification = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = identification + struct.pack(
        "<HHIIIIIHHHHHH", 2, 243, 1, _BASE, 52, offset_headers, 0, 52, 32, 1, 40, 6, 5
    )
    segment = struct.pack("<8I", 1, offset_text, _BASE, _BASE, len(text), len(text), 7, 4)
    body = header + segment + text + relocations + symbols + names + sections
    return body.ljust(offset_headers, b"\0") + headers
